"""The lock of a run directory: one process at a time, and none after a crash.

The system takes the lock back with the process that holds it, so a crash leaves none behind. The file names
its holder for the message only. A process forked from the holder holds it too: start others anew.
"""

import fcntl
import os
from pathlib import Path

from dora_rl.store.errors import RunError


class RunLock:
    """The lock of a run directory, held from construction until `release`."""

    def __init__(self, path: Path, directory: Path) -> None:
        try:
            self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        except OSError as error:
            raise RunError(
                f"run directory {directory} cannot be written: {error.strerror}",
                hint="whoever runs needs to write there; `dora report` only reads",
            ) from error
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            holder = os.pread(self._descriptor, 20, 0).decode(errors="replace").strip() or "unknown"
            os.close(self._descriptor)
            raise RunError(
                f"run directory {directory} is in use by process {holder}", hint="wait for it, or end it"
            ) from error
        os.truncate(self._descriptor, 0)
        os.pwrite(self._descriptor, f"{os.getpid()}\n".encode(), 0)

    def release(self) -> None:
        os.close(self._descriptor)
