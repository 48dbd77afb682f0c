"""Who leads a run: an epoch, taken by creating a file that only one process can have created.

A lock tells who may lead as long as everybody sees the same lock; on storage that machines share, one that
was cut off may come back and still believe that it leads. So whoever begins to lead takes the next epoch, and
every write carries the epoch it was begun under: lower ones than the highest are refused.
"""

import os
import socket
from pathlib import Path

from dora_rl.core.errors import DoraError
from dora_rl.core.record import Record

_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC


class StaleLeader(DoraError):
    """Another process has begun to lead the run; this one must not write to it any more."""

    is_lasting = True


class Fence(Record, frozen=True):
    """The epoch that a process writes under, and where later ones would show."""

    directory: Path
    """The directory with a file for each epoch."""
    epoch: int

    def check(self) -> None:
        """Raise StaleLeader if a later epoch was taken."""
        # The directory is read anew: a look at one name may be answered from what was seen before.
        newest = max(taken_epochs(self.directory), default=0)
        if newest > self.epoch:
            raise stale_leader(self.directory, self.epoch, newest)

    def renewed(self) -> "Fence":
        """Take the very next epoch, so that whoever writes under this one is refused from now on.

        Raise StaleLeader if somebody else took it: only who leads may renew.
        """
        try:
            _take(self.directory, self.epoch + 1)
        except FileExistsError as error:
            raise stale_leader(self.directory, self.epoch, self.epoch + 1) from error
        return Fence(directory=self.directory, epoch=self.epoch + 1)


def take_epoch(directory: Path, *, above: int = 0) -> Fence:
    """Take the next epoch, above any that was ever taken; the directory is made if it is missing."""
    directory.mkdir(exist_ok=True)
    while True:
        epoch = max([above, *taken_epochs(directory)]) + 1
        try:
            _take(directory, epoch)
        except FileExistsError:
            continue
        return Fence(directory=directory, epoch=epoch)


def _take(directory: Path, epoch: int) -> None:
    file = os.open(_path(directory, epoch), _NEW, 0o666)
    try:
        os.write(file, f"process {os.getpid()} on {socket.gethostname()}\n".encode())
        os.fsync(file)
    finally:
        os.close(file)
    _sync(directory)


def taken_epochs(directory: Path) -> list[int]:
    """Every epoch that was taken, in no order; none where there is no directory yet."""
    try:
        return [int(name) for name in os.listdir(directory) if name.isdigit()]
    except FileNotFoundError:
        return []


def stale_leader(directory: Path, epoch: int, newest: int) -> StaleLeader:
    """The error for a process of an earlier epoch."""
    try:
        holder = _path(directory, newest).read_text(errors="replace").strip() or "another process"
    except OSError:
        holder = "another process"
    return StaleLeader(
        f"{holder} leads the run in {directory.parent} now (epoch {newest}); what this process, of epoch "
        f"{epoch}, would write is refused",
        hint="let that one go on, or end it and resume",
    )


def _path(directory: Path, epoch: int) -> Path:
    return directory / f"{epoch:08}"


def _sync(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
