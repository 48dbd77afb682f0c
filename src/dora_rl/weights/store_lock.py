"""One publisher a store. The lock is the kernel's: it ends with the process, however that ends.

The file names its holder, for the message only.
"""

import fcntl
import os
from pathlib import Path

from dora_rl.weights.errors import CannotWrite, StoreBusy


class Lock:
    """The lock of a store's publisher, held from the first `acquire` to `release`."""

    def __init__(self, directory: Path, name: str = "lock", *, mode: int = 0o600) -> None:
        self._path = directory / name
        self._mode = mode
        self._descriptor: int | None = None

    def acquire(self) -> bool:
        """Take the lock; False if it was held already, StoreBusy if another holds it."""
        if self._descriptor is not None:
            return False
        try:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
            descriptor = os.open(self._path, flags, self._mode)
        except OSError as error:
            raise CannotWrite(f"cannot open {self._path}: {error.strerror}") from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            holder = os.pread(descriptor, 20, 0).decode(errors="replace").strip()
            os.close(descriptor)
            # In the message: whoever owns a worker tells its last words, and no hint.
            way_out = f"; if no run of yours needs it, end it: kill -9 {holder}" if holder else ""
            raise StoreBusy(
                f"process {holder or 'unknown'} holds {self._path}, and a store has one publisher{way_out}"
            ) from error
        os.truncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        self._descriptor = descriptor
        return True

    def release(self) -> None:
        """Release the lock, if it is held."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
