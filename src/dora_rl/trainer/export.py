"""The current version as a Hugging Face directory, alone or with the state that training goes on from."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from dora_rl.core.recipe.trainer_config import LoraConfig
from dora_rl.model.decoder import Decoder
from dora_rl.model.save import copy_companions, save_decoder
from dora_rl.trainer.adapter import base_name, save_adapter
from dora_rl.trainer.checkpoint import (
    MASTERS,
    Snapshot,
    is_apart,
    is_on_device,
    prepare_snapshots,
    take_snapshot,
    write_snapshot,
)
from dora_rl.trainer.host_memory import HostMemory
from dora_rl.trainer.lora import FACTOR

if TYPE_CHECKING:  # The trainer takes its checkpoints with these functions.
    from dora_rl.trainer.trainer import Trainer

_SERVED = "served/"
MERGED = "merged"
"""Where in a checkpoint of an adapter the merged model is."""


def export(trainer: "Trainer", directory: Path, *, origin: Path | None = None) -> None:
    """Write what an engine serves, with the tokenizer of `origin`. Every rank calls it, rank 0 writes."""
    decoder = served_on_host(trainer, HostMemory())
    if decoder is not None:
        save_decoder(decoder, directory, origin=origin)


def served_on_host(trainer: "Trainer", memory: HostMemory) -> Decoder | None:
    """The weights an engine serves, in host memory. Every rank calls it, rank 0 gets them.

    They are the trainer's own tensors where those are in host memory.
    """
    is_first = trainer.is_first
    tensors = memory.copied((each for each in trainer.weights.served() if is_first), _SERVED)
    if not is_first:
        return None
    decoder = Decoder.empty(trainer.weights.policy.decoder.config, device="meta")
    decoder.load_state_dict(tensors, assign=True)
    return decoder


def prepare_serving(trainer: "Trainer", memory: HostMemory) -> None:
    """Touch the memory that `served_on_host` takes before it is called first."""
    dtype = getattr(torch, trainer.config.serving_dtype)
    for name, parameter in trainer.weights.policy.decoder.named_parameters():
        memory.prepare(_SERVED + name, parameter.shape, dtype)


@dataclass(frozen=True, slots=True, kw_only=True)
class HostCheckpoint:
    """A version and the state to go on from, in host memory, to be written. Implements TrainerCheckpoint."""

    decoder: Decoder | None
    """The weights that are served; None where only an adapter is written."""
    snapshot: Snapshot
    is_apart: bool
    """Whether training may go on while this checkpoint is written."""
    lora: LoraConfig | None = None
    """How the factors among the masters change the model; None where all weights are trained."""

    def write(self, directory: Path, *, state: str, origin: Path) -> None:
        """Write a Hugging Face directory with the tokenizer of `origin`, and the trainer's state below it.

        With LoRA it is a peft adapter of `origin`, and the merged model is below it where that is wanted.
        """
        if self.lora is not None:
            masters = self.snapshot.files[MASTERS]
            factors = {name: own for name, own in masters.items() if FACTOR in name}
            save_adapter(factors, self.lora, directory, base=base_name(origin))
            copy_companions(origin, directory)
        if self.decoder is not None:
            save_decoder(self.decoder, directory if self.lora is None else directory / MERGED, origin=origin)
        write_snapshot(self.snapshot, directory / state)


def prepare_checkpoints(trainer: "Trainer", memory: HostMemory) -> None:
    """Touch the host memory that checkpoints from a device take: training would stand still for it."""
    if trainer.is_first and is_on_device(trainer):
        if trainer.config.lora is None or trainer.config.lora.merged_checkpoints:
            prepare_serving(trainer, memory)
        prepare_snapshots(trainer, memory)


def host_checkpoint(trainer: "Trainer", memory: HostMemory) -> HostCheckpoint | None:
    """Take the current version and the state to go on from. Every rank calls it, rank 0 gets it."""
    lora = trainer.config.lora
    is_whole = lora is None or lora.merged_checkpoints
    decoder, snapshot = served_on_host(trainer, memory) if is_whole else None, take_snapshot(trainer, memory)
    if snapshot is None:
        return None
    return HostCheckpoint(decoder=decoder, snapshot=snapshot, is_apart=is_apart(trainer), lora=lora)
