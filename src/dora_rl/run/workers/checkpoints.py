"""A run's checkpoints: `checkpoints/step_00012`, a Hugging Face directory, with the trainer's state inside.

A directory gets its name when all of it is written, and loses it before any of it is deleted. `trainer` holds
what training goes on from. The newest few stay, so that a damaged one is not the end of a run: it is found
out when it is opened, left alone, and replaced by the next checkpoint that is written.
"""

import os
import re
import shutil
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from safetensors import SafetensorError

from dora_rl.core.fence import Fence, StaleLeader
from dora_rl.core.recipe import Checkpoints
from dora_rl.trainer.checkpoint import CheckpointError
from dora_rl.trainer.protocol import PolicyTrainer, TrainerCheckpoint

STATE = "trainer"
_NAME = re.compile(r"step_(\d{5,})")
_PARTIAL = (".step_*.partial", f"step_*/.{STATE}.partial")
"""What is being written or deleted; after a kill it is nobody's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingCheckpoint:
    """A checkpoint that was taken from the trainer and is to be written."""

    version: int
    directory: Path
    contents: TrainerCheckpoint | None
    """The tensors and state to write; None where the checkpoint is written already."""
    damaged: tuple[Path, ...] = ()
    """Checkpoints that could not be gone on from: this one is written in their place."""

    @property
    def is_apart(self) -> bool:
        """Whether training may go on while this checkpoint is written."""
        return self.contents is not None and self.contents.is_apart


def take_checkpoint(
    trainer: PolicyTrainer, root: Path, damaged: Collection[Path] = ()
) -> PendingCheckpoint | None:
    """The trainer's version, to be written by rank 0 before the next one is taken.

    Every rank calls it, and all see alike whether the checkpoint is there and not `damaged`.
    """
    directory = root / f"step_{trainer.version:05}"
    is_there = (directory / STATE).exists() and directory not in damaged
    contents = None if is_there else trainer.take_checkpoint()
    if not trainer.is_first:
        return None
    return PendingCheckpoint(
        version=trainer.version, directory=directory, contents=contents, damaged=tuple(damaged)
    )


def write_checkpoint(pending: PendingCheckpoint, *, model: Path, kept: Checkpoints, fence: Fence) -> int:
    """Write a checkpoint unless it exists, and delete those that are not to be kept, or are damaged.

    A StaleLeader, and nothing gets its name or loses it, where another process leads the run by now.

    Returns the oldest version that training can be started from; version 0, the initial model, counts as a
    checkpoint while there are fewer than are to be kept.
    """
    directory, root = pending.directory, pending.directory.parent
    remove_leftovers(root)
    if pending.contents is not None:
        partial = _partial(directory)
        try:
            pending.contents.write(partial, state=STATE, origin=model)
            _sync(partial)
            fence.check()
            if directory.exists():
                shutil.rmtree(directory)
            partial.rename(directory)
            _sync(root)
        except StaleLeader:
            shutil.rmtree(partial, ignore_errors=True)
            raise
        except (OSError, SafetensorError) as error:
            shutil.rmtree(partial, ignore_errors=True)
            raise CheckpointError(f"cannot write {directory}: {error}") from error
    for state in (each / STATE for each in pending.damaged if each != directory):
        if state.exists():
            _remove(state)
    # The model of a damaged one must not drive out a whole one, which the run may have to go on from.
    states, models = with_state(root)[-kept.keep :], _checkpoints(root)[-kept.num_models :]
    for old in _checkpoints(root):
        if old not in (*states, *models):
            _remove(old)
        elif old not in states and (old / STATE).exists():
            _remove(old / STATE)
    return _version(states[0]) if len(states) >= kept.keep else 0


def load_newest(trainer: PolicyTrainer, root: Path) -> dict[Path, str]:
    """Load the trainer from the newest checkpoint that is whole, if there is one.

    Returns what is wrong with each newer one. All ranks read the same files, and come to the same.
    """
    damaged: dict[Path, str] = {}
    found, states = _checkpoints(root), with_state(root)
    # Those beside their states that are older never had to keep them.
    for directory in reversed(found[found.index(states[0]) :] if states else []):
        try:
            trainer.load_checkpoint(directory / STATE)
            break
        except CheckpointError as error:
            damaged[directory] = error.message
    return damaged


def with_state(root: Path) -> list[Path]:
    """Checkpoints with trainer state, which training can go on from, oldest first."""
    return [path for path in _checkpoints(root) if (path / STATE).exists()]


def remove_leftovers(root: Path) -> None:
    """Delete what a killed process was writing or deleting."""
    for pattern in _PARTIAL:
        for left in root.glob(pattern):
            shutil.rmtree(left, ignore_errors=True)


def _checkpoints(root: Path) -> list[Path]:
    named = [path for path in root.iterdir() if _NAME.fullmatch(path.name)] if root.exists() else []
    return sorted(named, key=_version)


def _version(directory: Path) -> int:
    return int(directory.name.removeprefix("step_"))


def _partial(path: Path) -> Path:
    return path.with_name(f".{path.name}.partial")


def _remove(directory: Path) -> None:
    """Delete a directory, which a kill in the middle leaves without its name."""
    shutil.rmtree(directory.rename(_partial(directory)))


def _sync(directory: Path) -> None:
    for path in (*(path for path in directory.rglob("*") if path.is_file()), directory):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
