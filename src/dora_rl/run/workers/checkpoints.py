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

from dora_rl.trainer.checkpoint import CheckpointError
from dora_rl.trainer.protocol import PolicyTrainer, TrainerCheckpoint

STATE = "trainer"
_NAME = re.compile(r"step_(\d{5,})")


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingCheckpoint:
    """A checkpoint that was taken from the trainer and is to be written."""

    version: int
    directory: Path
    contents: TrainerCheckpoint | None
    """The tensors and state to write; None where the checkpoint is written already."""

    @property
    def is_apart(self) -> bool:
        """Whether training may go on while this checkpoint is written."""
        return self.contents is not None and self.contents.is_apart


def take_checkpoint(trainer: PolicyTrainer, root: Path) -> PendingCheckpoint | None:
    """The trainer's version, to be written by rank 0 before the next one is taken.

    Every rank calls it, and all see whether the directory is there.
    """
    directory = root / f"step_{trainer.version:05}"
    contents = None if directory.exists() else trainer.take_checkpoint()
    if not trainer.is_first:
        return None
    return PendingCheckpoint(version=trainer.version, directory=directory, contents=contents)


def write_checkpoint(pending: PendingCheckpoint, *, model: Path, kept_states: int) -> Path:
    """Write a checkpoint unless it exists, and delete trainer states beyond `kept_states`."""
    directory, root = pending.directory, pending.directory.parent
    partial = directory.with_name(f".{directory.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    if pending.contents is not None:
        try:
            pending.contents.write(partial, state=STATE, origin=model)
            _sync(partial)
            partial.rename(directory)
            _sync(root)
        except (OSError, SafetensorError) as error:
            shutil.rmtree(partial, ignore_errors=True)
            raise CheckpointError(f"cannot write {directory}: {error}") from error
    for old in with_state(root)[:-kept_states]:
        shutil.rmtree(old / STATE)
    return directory


def load_newest(trainer: PolicyTrainer, root: Path) -> None:
    """Load the trainer from the newest checkpoint, if there is one."""
    found = with_state(root)
    if found:
        trainer.load_checkpoint(found[-1] / STATE)


def with_state(root: Path) -> list[Path]:
    """Checkpoints with trainer state, which training can go on from, oldest first."""
    named = [path for path in root.iterdir() if _NAME.fullmatch(path.name)] if root.exists() else []
    return sorted((path for path in named if (path / STATE).exists()), key=lambda path: int(path.name[5:]))


def _sync(directory: Path) -> None:
    for path in (*(path for path in directory.rglob("*") if path.is_file()), directory):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
