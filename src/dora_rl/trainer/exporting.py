"""The current version as a Hugging Face directory."""

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from dora_rl.model.decoder import Decoder
from dora_rl.model.save import save_decoder
from dora_rl.trainer.trainer import Trainer


def export(trainer: Trainer, directory: Path, *, origin: Path | None = None) -> None:
    """Write what an engine serves, with the tokenizer of `origin`. Every rank calls it, rank 0 writes."""
    tensors = served_on_host(trainer)
    if trainer.ranks.rank == 0:
        save_decoder(decoder_of(trainer, tensors), directory, origin=origin)


def served_on_host(trainer: Trainer) -> dict[str, Tensor]:
    """What an engine serves, put together from all ranks."""
    return {name: tensor.cpu() for name, tensor in trainer.served_tensors().items()}


def decoder_of(trainer: Trainer, tensors: Mapping[str, Tensor]) -> Decoder:
    """A copy of what an engine serves, that can be written."""
    serving = getattr(torch, trainer.config.serving_dtype)
    decoder = Decoder.empty(trainer.weights.policy.decoder.config, dtype=serving)
    decoder.load_state_dict(tensors)
    return decoder
