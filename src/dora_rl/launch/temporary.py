"""Temporary directories that no signal leaves behind."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dora_rl.launch.waiting import undisturbed


@contextmanager
def temporary_directory(prefix: str) -> Iterator[Path]:
    """A directory while the block runs; signals to end that come while it is removed change nothing."""
    made = tempfile.TemporaryDirectory(prefix=prefix)
    try:
        yield Path(made.name)
    finally:
        with undisturbed():
            made.cleanup()
