"""The current version as a Hugging Face directory."""

from pathlib import Path

import torch

from dora_rl.model.decoder import Decoder
from dora_rl.model.save import save_decoder
from dora_rl.trainer.trainer import Trainer


def export(trainer: Trainer, directory: Path, *, origin: Path | None = None) -> None:
    """Write what an engine serves, with the tokenizer of `origin`. Every rank calls it, rank 0 writes."""
    tensors = {name: tensor.cpu() for name, tensor in trainer.served_tensors().items()}
    if trainer.ranks.rank != 0:
        return
    serving = getattr(torch, trainer.config.serving_dtype)
    decoder = Decoder.empty(trainer.weights.policy.decoder.config, dtype=serving)
    decoder.load_state_dict(tensors)
    save_decoder(decoder, directory, origin=origin)
