"""Between processes of one user on one machine: a store whose files are memory.

The files lie in a private directory (mode 0700, files 0600) of the memory file system. Its name is all that
another process needs. The owner removes it when it closes. If the owner dies, the kernel lets go of its lock,
and the next owner to come clears the directory away; so does a restart of the machine.
"""

import os
import shutil
import stat
import tempfile
import weakref
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from dora_rl.model.delta import Delta
from dora_rl.weights.chain import AnchorPolicy
from dora_rl.weights.channel import Resident
from dora_rl.weights.errors import Busy, CannotWrite, UnknownVersion
from dora_rl.weights.files import VolatileFiles
from dora_rl.weights.lock import Lock
from dora_rl.weights.store import Store
from dora_rl.weights.strips import Tensors

_PREFIX = "dora-weights-"
_OWNER = "owner"


def shared_root() -> Path:
    """Where memory can be had by name."""
    root = Path("/dev/shm")
    return root if root.is_dir() else Path(tempfile.gettempdir())


class SharedMemory:
    """Speaks Channel. Made by the owner, who publishes; opened elsewhere by its name."""

    def __init__(self, directory: Path, *, policy: AnchorPolicy | None = None) -> None:
        self._directory = directory
        self._store = Store(directory, policy=policy, files=VolatileFiles())
        self._remove: weakref.finalize[[Path, int, Lock], SharedMemory] | None = None

    @classmethod
    def create(cls, *, root: Path | None = None, policy: AnchorPolicy | None = None) -> Self:
        """A new one, owned by this process."""
        root = root or shared_root()
        _clear_abandoned(root)
        unnamed = Path(tempfile.mkdtemp(prefix=f".{_PREFIX}", dir=root))
        owner = Lock(unnamed, _OWNER)
        owner.acquire()
        # Only now does it get a name by which others may take it for abandoned.
        directory = unnamed.rename(root / unnamed.name.removeprefix("."))
        channel = cls(directory, policy=policy)
        channel._remove = weakref.finalize(channel, _remove, directory, os.getpid(), owner)
        return channel

    @classmethod
    def open(cls, name: str, *, root: Path | None = None) -> Self:
        """One that another process of this user made."""
        directory = (root or shared_root()) / name
        if Path(name).name != name or not name.startswith(_PREFIX) or not directory.exists():
            raise UnknownVersion(f"there are no shared weights named '{name}'")
        if not _is_private(directory):
            raise CannotWrite(f"{directory} is not this user's alone", hint="let its owner create it again")
        return cls(directory)

    @property
    def name(self) -> str:
        """By which other processes open it."""
        return self._directory.name

    @property
    def versions(self) -> tuple[int, ...]:
        """Those that can be fetched, oldest first."""
        return self._store.versions

    def publish(self, version: int, tensors: Tensors) -> None:
        """Put a version into shared memory."""
        self._store.publish(version, tensors)

    def fetch(self, version: int, device: str | None = None) -> Tensors:
        """All of a version, in memory of the caller's own."""
        return self._store.fetch(version, device)

    def fetch_delta(self, version: int, base: Resident) -> Delta:
        """What turns the base into a newer version, on the device of the base."""
        return self._store.fetch_delta(version, base)

    def retire(self, version: int) -> None:
        """Let go of a version."""
        self._store.retire(version)

    def close(self) -> None:
        """Give the memory back, if this process owns it."""
        self._store.close()
        if self._remove is not None:
            self._remove()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _remove(directory: Path, owner_pid: int, owner: Lock) -> None:
    # A forked child has a copy of the owner's object, not its duty.
    if os.getpid() == owner_pid:
        shutil.rmtree(directory, ignore_errors=True)
    owner.release()


def _clear_abandoned(root: Path) -> None:
    """Remove what owners left that died without closing."""
    for directory in root.glob(f"{_PREFIX}*"):
        if _is_private(directory) and (directory / _OWNER).exists():
            owner = Lock(directory, _OWNER)
            with suppress(Busy, CannotWrite):
                owner.acquire()
                shutil.rmtree(directory, ignore_errors=True)
            owner.release()


def _is_private(directory: Path) -> bool:
    try:
        found = directory.lstat()
    except FileNotFoundError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o077
