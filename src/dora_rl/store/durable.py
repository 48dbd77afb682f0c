"""Files and directories that are there whole or not at all, whenever the machine stops.

Content is flushed before it gets its name, and the name is flushed before the call returns.
"""

import errno
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dora_rl.core.errors import NO_ROOM
from dora_rl.store.errors import DiskFull


def write_atomically(path: Path, content: bytes) -> None:
    """Make `path` hold `content`; a crash leaves what was there before, or all of this."""
    temporary = _beside(path)
    with full_disk_named(path):
        try:
            with temporary.open("xb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        sync_path(path.parent)


@contextmanager
def new_directory(path: Path) -> Iterator[Path]:
    """Yield a directory to fill, which gets the name `path` when the block ends well.

    FileExistsError if there is something else than an empty directory by then.
    """
    temporary = _beside(path)
    missing = [parent for parent in path.absolute().parents if not parent.exists()]
    with full_disk_named(path):
        temporary.mkdir(parents=True)
        try:
            yield temporary
            for inner in (*temporary.rglob("*"), temporary):
                sync_path(inner)
            _rename_to_new(temporary, path)
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise
        for made in (path, *missing):
            sync_path(made.parent)


def sync_path(path: Path) -> None:
    """Flush a file, or the names in a directory, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def full_disk_named(path: Path) -> Iterator[None]:
    """Turn the system's error for a full disk within the block into DiskFull."""
    try:
        yield
    except OSError as error:
        if error.errno not in NO_ROOM:
            raise
        raise disk_full(path) from error


def disk_full(path: Path) -> DiskFull:
    """The error that says which disk had no room for `path`."""
    return DiskFull(
        f"no space is left to write {path}: the disk mounted at {_mount_of(path)} is full",
        hint="free some space",
    )


def _rename_to_new(source: Path, target: Path) -> None:
    """Rename a directory to a name that is free or an empty directory, so that nothing is overwritten."""
    try:
        source.rename(target)
    except OSError as error:
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
            raise FileExistsError(errno.EEXIST, "exists already", str(target)) from error
        raise


def _beside(path: Path) -> Path:
    """A unique temporary name in the directory of `path`, so that renaming is atomic."""
    return path.with_name(f".{path.name}.{secrets.token_hex(4)}.partial")


def _mount_of(path: Path) -> Path:
    places = (path.absolute(), *path.absolute().parents)
    return next(place for place in places if place.is_mount())
