"""What kind of storage a directory is on: a disk of this machine alone, or one that machines share.

SQLite's write-ahead log keeps its index in memory that all who use it must share, so it needs one machine.
Storage of a kind that is not known to be local is taken for shared.
"""

import fcntl
import subprocess
import sys
from pathlib import Path
from typing import Literal

from dora_rl.store.errors import JournalError

_LOCAL = {
    *("apfs", "bcachefs", "btrfs", "devtmpfs", "ext2", "ext3", "ext4", "f2fs", "hfs"),
    *("overlay", "ramfs", "rootfs", "tmpfs", "xfs", "zfs"),
}
"""File systems that only one machine has mounted."""
_MOUNTS = Path("/proc/self/mounts")
_PROBE = """
import fcntl, sys
with open(sys.argv[1], "r+b") as file:
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        sys.exit(3)
"""
_IS_LOCKED = 3


def is_shared(path: Path, said: Literal["auto", "local", "shared"], mounts: Path = _MOUNTS) -> bool:
    """Whether other machines may use the storage that `path` is on, as was said, or by its file system.

    Where the system does not tell, it is this machine's.
    """
    if said != "auto":
        return said == "shared"
    return mounts.exists() and file_system(path, mounts) not in _LOCAL


def file_system(path: Path, mounts: Path = _MOUNTS) -> str:
    """The kind of the file system that `path` is on, by the system's name for it."""
    places = [str(each) for each in (path.absolute(), *path.absolute().parents)]
    kinds: dict[str, str] = {}
    for line in mounts.read_text(errors="replace").splitlines():
        _, place, kind, *_ = line.split()
        # The last one mounted there is the one that is seen.
        kinds[place.replace("\\040", " ")] = kind
    return next((kinds[place] for place in places if place in kinds), "unknown")


def check_locks(directory: Path) -> None:
    """Raise a JournalError where a lock that this process has does not keep another one out."""
    path = directory / "lock.probe"
    try:
        with path.open("wb") as file:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            other = subprocess.run([sys.executable, "-c", _PROBE, str(path)], capture_output=True, text=True)
    except OSError as error:
        raise _no_locks(directory, str(error)) from error
    finally:
        path.unlink(missing_ok=True)
    if other.returncode != _IS_LOCKED:
        said = other.stderr.strip().splitlines()
        raise _no_locks(directory, said[-1] if said else "two processes locked one file at once")


def _no_locks(directory: Path, problem: str) -> JournalError:
    return JournalError(
        f"the storage of {directory} keeps no locks, so two could write one journal: {problem}",
        hint="mount it with locks (NFS: version 4, Lustre: -o flock), or put the run elsewhere: "
        "--set run.directory=...",
    )
