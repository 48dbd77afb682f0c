"""A run's checkpoints: `checkpoints/step_00012`, a Hugging Face directory, with the trainer's state inside.

A directory gets its name when all of it is written. `trainer` holds what training goes on from; only the
newest few keep it.
"""

import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

from safetensors import SafetensorError

from dora_rl.model.decoder import Decoder
from dora_rl.model.save import save_decoder
from dora_rl.trainer.checkpoint import (
    CheckpointError,
    Snapshot,
    is_apart,
    is_on_device,
    load_checkpoint,
    prepare_snapshots,
    take_snapshot,
    write_snapshot,
)
from dora_rl.trainer.exporting import prepare_serving, served_on_host
from dora_rl.trainer.host_memory import HostMemory
from dora_rl.trainer.trainer import Trainer

STATE = "trainer"
_NAME = re.compile(r"step_(\d{5,})")


@dataclass(frozen=True, slots=True, kw_only=True)
class Pending:
    """A checkpoint in host memory, to be written."""

    version: int
    directory: Path
    contents: tuple[Decoder, Snapshot] | None
    """None where it is written already."""
    is_apart: bool
    """Whether training may go on meanwhile."""


def prepare_checkpoints(trainer: Trainer, memory: HostMemory) -> None:
    """Touch the host memory that checkpoints from a device take: training would stand still for it."""
    if trainer.ranks.rank == 0 and is_on_device(trainer):
        prepare_serving(trainer, memory)
        prepare_snapshots(trainer, memory)


def take_checkpoint(trainer: Trainer, root: Path, memory: HostMemory) -> Pending | None:
    """The trainer's version, to be written by rank 0 before the next one is taken.

    Every rank calls it, and all see whether the directory is there.
    """
    directory, contents = root / f"step_{trainer.version:05}", None
    if not directory.exists():
        decoder, snapshot = served_on_host(trainer, memory), take_snapshot(trainer, memory)
        if decoder is not None and snapshot is not None:
            contents = decoder, snapshot
    if trainer.ranks.rank != 0:
        return None
    return Pending(
        version=trainer.version, directory=directory, contents=contents, is_apart=is_apart(trainer)
    )


def write_checkpoint(pending: Pending, *, model: Path, kept_states: int) -> Path:
    """Write it, unless it is there, and drop states that are too many."""
    directory, root = pending.directory, pending.directory.parent
    partial = directory.with_name(f".{directory.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    if pending.contents is not None:
        decoder, snapshot = pending.contents
        try:
            save_decoder(decoder, partial, origin=model)
            write_snapshot(snapshot, partial / STATE)
            _sync(partial)
            partial.rename(directory)
            _sync(root)
        except (OSError, SafetensorError) as error:
            shutil.rmtree(partial, ignore_errors=True)
            raise CheckpointError(f"cannot write {directory}: {error}") from error
    for old in with_state(root)[:-kept_states]:
        shutil.rmtree(old / STATE)
    return directory


def load_newest(trainer: Trainer, root: Path) -> None:
    """Go on from the newest checkpoint, if there is one."""
    found = with_state(root)
    if found:
        load_checkpoint(trainer, found[-1] / STATE)


def with_state(root: Path) -> list[Path]:
    """Checkpoints that training can go on from, oldest first."""
    named = [path for path in root.iterdir() if _NAME.fullmatch(path.name)] if root.exists() else []
    return sorted((path for path in named if (path / STATE).exists()), key=lambda path: int(path.name[5:]))


def _sync(directory: Path) -> None:
    for path in (*(path for path in directory.rglob("*") if path.is_file()), directory):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
