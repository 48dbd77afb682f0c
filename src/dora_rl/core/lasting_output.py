"""What is printed may be lost: a closed pipe, a terminal that is gone, a full disk.

Work that outlives whoever watches it goes on (`lasting_output`). A command whose result is what it prints has
failed, and that is said in a sentence (`needed_output`).
"""

import errno
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any, TextIO, cast

from dora_rl.core.errors import DoraError


class GuardedStream:
    """A stream whose writes are guarded, for when they fail; otherwise the one it was made of."""

    def __init__(self, stream: Any, guard: "Guard") -> None:
        self.unguarded = stream
        self.guard = guard

    def write(self, content: Any) -> int:
        with self.guard(self.unguarded):
            return int(self.unguarded.write(content))
        return len(content)

    def flush(self) -> None:
        with self.guard(self.unguarded):
            self.unguarded.flush()

    @property
    def buffer(self) -> "GuardedStream":
        """The stream of bytes below one of text."""
        return GuardedStream(self.unguarded.buffer, self.guard)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.unguarded, name)


Guard = Callable[[Any], AbstractContextManager[None]]
"""A function that is given a stream, and returns a block to write to it within."""


def lasting(stream: TextIO) -> TextIO:
    """A stream as one that raises nothing when it cannot be written; None, where there is none, as it is."""
    return _guarded(stream, _losses_noted)


def _guarded(stream: TextIO, guard: Guard) -> TextIO:
    if stream is None or (isinstance(stream, GuardedStream) and stream.guard is guard):
        return stream
    return cast(TextIO, GuardedStream(_unguarded(stream), guard))


def _unguarded(stream: TextIO) -> TextIO:
    return cast(TextIO, stream.unguarded) if isinstance(stream, GuardedStream) else stream


@contextmanager
def needed_output() -> Iterator[None]:
    """Raise a DoraError where what the block prints to stdout cannot be written, also what it ends with.

    Of a whole process, so for its main program only.
    """
    before = sys.stdout
    sys.stdout = _guarded(before, _losses_raised)
    try:
        yield
    except SystemExit:
        # What is still held would fail when Python ends, beyond the reach of anyone who could tell.
        if sys.stdout is not None:
            sys.stdout.flush()
        raise
    finally:
        sys.stdout = before


@contextmanager
def lasting_output() -> Iterator[None]:
    """Let everything that this process prints while the block runs be lost where it cannot be written.

    Of a whole process, so for its main program only.
    """
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = map(lasting, before)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before
        for stream in before:
            _give_up_unwritten(stream)


_losses: dict[str, str] = {}
"""What could not be printed to and why, by the stream's name; of this process, like its streams."""
_noted: set[str] = set()


def note_losses(log: Path) -> None:
    """Append to a log, once, that what this process prints is lost."""
    for name, why in _losses.items():
        if name not in _noted:
            _noted.add(name)
            with suppress(OSError), log.open("a", encoding="utf-8") as file:
                at = time.strftime("%Y-%m-%d %H:%M:%S")
                file.write(f"{at} {name} cannot be written ({why}): what is printed there is lost\n")


@contextmanager
def _losses_noted(stream: Any) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        _losses.setdefault(getattr(stream, "name", "output"), error.strerror or str(error))
    except ValueError as error:
        # It was closed within this process.
        if not stream.closed:
            raise
        _losses.setdefault(getattr(stream, "name", "output"), str(error))


@contextmanager
def _losses_raised(stream: Any) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        # Whoever reads a pipe may close it when it has enough, as `head` does.
        if error.errno == errno.EPIPE:
            raise
        raise DoraError(
            f"what the command prints cannot be written: {error.strerror or error}",
            hint="send it to a place with room",
        ) from error


def _give_up_unwritten(stream: TextIO | None) -> None:
    """Let go of what a stream still holds and cannot write: Python would fail over it when it ends."""
    if stream is None or stream.closed:
        return
    stream = _unguarded(stream)
    try:
        stream.flush()
    except OSError:
        with suppress(OSError, ValueError):
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, stream.fileno())
            os.close(nowhere)
