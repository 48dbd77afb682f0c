"""The current version as a Hugging Face directory, alone or with the state that training goes on from."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from dora_rl.core.recipe.trainer_config import LoraConfig
from dora_rl.model.language_model import LanguageModel, save_model
from dora_rl.model.save import copy_companions
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
    served = served_on_host(trainer, HostMemory())
    if served is not None:
        save_model(trainer.weights.policy.decoder, served, directory, origin=origin)


def served_on_host(trainer: "Trainer", memory: HostMemory) -> Mapping[str, Tensor] | None:
    """The weights an engine serves, in host memory. Every rank calls it, rank 0 gets them.

    They are the trainer's own tensors where those are in host memory.
    """
    is_first = trainer.is_first
    tensors = memory.copied((each for each in trainer.weights.served() if is_first), _SERVED)
    return tensors if is_first else None


def prepare_serving(trainer: "Trainer", memory: HostMemory) -> None:
    """Touch the memory that `served_on_host` takes before it is called first."""
    dtype = getattr(torch, trainer.config.serving_dtype)
    for name, parameter in trainer.weights.policy.decoder.named_parameters():
        memory.prepare(_SERVED + name, parameter.shape, dtype)


@dataclass(frozen=True, slots=True, kw_only=True)
class HostCheckpoint:
    """A version and the state to go on from, in host memory, to be written. Implements TrainerCheckpoint."""

    decoder: LanguageModel
    """The model, whatever its own weights are when this is written."""
    served: Mapping[str, Tensor] | None
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
        if self.served is not None:
            target = directory if self.lora is None else directory / MERGED
            save_model(self.decoder, self.served, target, origin=origin)
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
    served, snapshot = served_on_host(trainer, memory) if is_whole else None, take_snapshot(trainer, memory)
    if snapshot is None:
        return None
    return HostCheckpoint(
        decoder=trainer.weights.policy.decoder,
        served=served,
        snapshot=snapshot,
        is_apart=is_apart(trainer),
        lora=lora,
    )
