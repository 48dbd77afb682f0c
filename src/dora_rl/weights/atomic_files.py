"""Files that are there whole or not at all.

A file is written under a temporary name, flushed to the disk, renamed, and its directory flushed: after a
crash at any moment the name leads to all of it or to nothing. What is left under a temporary name is never
read.
"""

import os
from collections.abc import Iterable
from pathlib import Path

from dora_rl.core.fence import Fence
from dora_rl.weights.errors import CannotWrite
from dora_rl.weights.packed_sections import Data

_TEMPORARY = ".tmp"


class Files:
    """The operations on a file system that must not go wrong halfway, nor be done by who may no more."""

    mode = 0o666
    """Permissions of a new file before the umask: like everything else in a run's directory."""

    def __init__(self, fence: Fence | None = None) -> None:
        """`fence` refuses what is renamed or removed once somebody else leads the run."""
        self._fence = fence

    def check_leader(self) -> None:
        """Raise StaleLeader where the files are somebody else's to change by now."""
        if self._fence is not None:
            self._fence.check()

    def write(self, path: Path, chunks: Iterable[Data]) -> None:
        """Put a file in its place, whole or not at all."""
        temporary = path.with_name(f".{path.name}.{os.getpid()}{_TEMPORARY}")
        try:
            self._fill(temporary, chunks)
            self.check_leader()
            self.rename(temporary, path)
            self.sync_directory(path.parent)
        except OSError as error:
            raise CannotWrite(f"cannot write {path}: {error.strerror or error}") from error
        finally:
            # There no more after a rename, and of no use after anything else.
            self.remove(temporary)

    def _fill(self, path: Path, chunks: Iterable[Data]) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW
        with open(os.open(path, flags, self.mode), "wb", buffering=0) as file:
            for chunk in chunks:
                self.append(file.fileno(), chunk)
            self.sync(file.fileno())

    def append(self, descriptor: int, chunk: Data) -> None:
        """Write all of these bytes: the system may take them in parts."""
        view = memoryview(chunk)
        while len(view):
            view = view[os.write(descriptor, view) :]

    def sync(self, descriptor: int) -> None:
        """Wait until what was written is on the disk."""
        os.fsync(descriptor)

    def rename(self, old: Path, new: Path) -> None:
        """Give a temporary file its final name."""
        os.replace(old, new)

    def sync_directory(self, directory: Path) -> None:
        """Wait until the names in a directory are on the disk."""
        descriptor = os.open(directory, os.O_RDONLY)
        try:
            self.sync(descriptor)
        except OSError as error:
            raise CannotWrite(f"cannot flush {directory}: {error.strerror or error}") from error
        finally:
            os.close(descriptor)

    def remove(self, path: Path) -> None:
        """Remove a file, if it exists."""
        path.unlink(missing_ok=True)


def is_temporary(path: Path) -> bool:
    """Whether a file has a temporary name: it was never finished."""
    return path.name.startswith(".") and path.name.endswith(_TEMPORARY)
