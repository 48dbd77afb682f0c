"""A run's checkpoints: `checkpoints/step_00012`, a Hugging Face directory, with the trainer's state inside.

A directory gets its name when all of it is written. `trainer` holds what training goes on from; only the
newest few keep it.
"""

import os
import re
import shutil
from pathlib import Path

from safetensors import SafetensorError

from dora_rl.trainer.checkpoint import CheckpointError, load_checkpoint, save_checkpoint
from dora_rl.trainer.exporting import export
from dora_rl.trainer.trainer import Trainer

STATE = "trainer"
_NAME = re.compile(r"step_(\d{5,})")


def write_checkpoint(trainer: Trainer, root: Path, *, model: Path, kept_states: int) -> Path:
    """Write the trainer's version, unless it is there, and drop states that are too many.

    Every rank calls it, rank 0 writes. It cannot finish without the others, so they see what it saw.
    """
    directory = root / f"step_{trainer.version:05}"
    partial = directory.with_name(f".{directory.name}.partial")
    is_first, is_new = trainer.ranks.rank == 0, not directory.exists()
    if is_first:
        shutil.rmtree(partial, ignore_errors=True)
    if is_new:
        try:
            export(trainer, partial, origin=model)
            save_checkpoint(trainer, partial / STATE)
            if is_first:
                _sync(partial)
                partial.rename(directory)
                _sync(root)
        except (OSError, SafetensorError) as error:
            shutil.rmtree(partial, ignore_errors=True)
            raise CheckpointError(f"cannot write {directory}: {error}") from error
    if is_first:
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
