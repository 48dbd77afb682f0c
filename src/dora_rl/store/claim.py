"""A number for a run before it has a directory: two that start at once never take the same one.

A claim is an empty directory under the run's name, locked by its maker; `RunDirectory.create` replaces it.
The system takes the lock back with the process that holds it, so what a crash leaves is an empty directory
that the next run may have.
"""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path

from dora_rl.store.durable import sync_path
from dora_rl.store.errors import RunError

_TRIES = 5


@contextmanager
def claimed(place: Path, name: str) -> Iterator[Path]:
    """The first free of `NAME-1`, `NAME-2`, ... in `place`; nothing is left of it if no run begins there."""
    missing = [each for each in (place, *place.absolute().parents) if not each.exists()]
    try:
        path, descriptor = next(_claims(place, name))
        for made in missing:
            sync_path(made.parent)
    except OSError as error:
        raise RunError(
            f"cannot write {place}: {error.strerror}", hint="choose another place: --set run.directory=..."
        ) from error
    try:
        yield path
    finally:
        # Removed only where it is empty, and still ours.
        if _is_at(path, descriptor):
            with suppress(OSError):
                path.rmdir()
                for made in missing:
                    made.rmdir()
        os.close(descriptor)


def next_free(place: Path, name: str) -> Path:
    """The directory that `claimed` would take now."""
    return next(path for path in _names(place, name) if not path.exists() or _is_empty(path))


def _names(place: Path, name: str) -> Iterator[Path]:
    return (place / f"{name}-{number}" for number in count(1))


def _claims(place: Path, name: str) -> Iterator[tuple[Path, int]]:
    for path in _names(place, name):
        is_new = _made(path)
        if (is_new or _is_empty(path)) and (descriptor := _locked(path, is_new)) is not None:
            yield path, descriptor


def _made(path: Path) -> bool:
    for tries_left in range(_TRIES - 1, -1, -1):
        try:
            path.mkdir(parents=True)
        except FileExistsError:
            return False
        except FileNotFoundError:
            # Another run that did not begin took the place along that it had made.
            if not tries_left:
                raise
        else:
            return True
    return False


def _is_empty(path: Path) -> bool:
    try:
        return not any(path.iterdir())
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return False


def _locked(path: Path, is_new: bool) -> int | None:
    """Lock a claim's directory and return its descriptor; None where another process has it."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        is_ours = True
    except BlockingIOError:
        is_ours = False
    except OSError:
        # Some file systems lock no directories: there whoever made it has it.
        is_ours = is_new
    if is_ours and _is_at(path, descriptor) and _is_empty(path):
        return descriptor
    os.close(descriptor)
    return None


def _is_at(path: Path, descriptor: int) -> bool:
    """Whether the directory behind a descriptor is still the one at `path`."""
    with suppress(OSError):
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    return False
