"""What is printed may be lost, the work goes on: a closed pipe, a terminal that is gone, a full disk.

For work that outlives whoever watches it. A command whose result is what it prints must not use it: there a
lost line is a failure.
"""

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TextIO, cast


class LastingStream:
    """A stream that raises nothing when it cannot be written; otherwise the one it was made of."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def write(self, content: Any) -> int:
        with _losses_noted(self._stream):
            return int(self._stream.write(content))
        return len(content)

    def flush(self) -> None:
        with _losses_noted(self._stream):
            self._stream.flush()

    @property
    def buffer(self) -> "LastingStream":
        """The stream of bytes below one of text."""
        return LastingStream(self._stream.buffer)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def lasting(stream: TextIO) -> TextIO:
    """A stream as one that raises nothing when it cannot be written; None, where there is none, as it is."""
    if stream is None or isinstance(stream, LastingStream):
        return stream
    return cast(TextIO, LastingStream(stream))


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


def _give_up_unwritten(stream: TextIO | None) -> None:
    """Let go of what a stream still holds and cannot write: Python would fail over it when it ends."""
    if stream is None or stream.closed:
        return
    try:
        stream.flush()
    except OSError:
        with suppress(OSError, ValueError):
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, stream.fileno())
            os.close(nowhere)
