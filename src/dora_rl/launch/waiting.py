"""Waiting: for any worker to speak, for the next tick, for an interrupt; never longer than asked.

Knows descriptors and signals, not who is behind them.
"""

import os
import select
import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any, Protocol

from dora_rl.launch.protocol import Handle


class Readable(Protocol):
    """Anything with a file descriptor that can be waited for."""

    def fileno(self) -> int:
        """The descriptor that is readable when there is something to do."""
        ...


class Interrupts:
    """Counts how often the user, or the system, asked the run to end."""

    def __init__(self) -> None:
        self.count = 0
        self._is_closed = False
        # Reentrant, because a signal may come while its thread asks.
        self._closing = threading.RLock()
        self._read, self._write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def fileno(self) -> int:
        return self._read

    def note(self, number: int, frame: FrameType | None) -> None:
        """Count a signal; has the form of a signal handler."""
        self.ask()

    def ask(self) -> None:
        """Ask the run to end in order, the second time at once; may be called from any thread."""
        with self._closing:
            self.count += 1
            if not self._is_closed:
                os.write(self._write, b"!")

    def close(self) -> None:
        """Close the descriptors; asking has no effect from then on."""
        with self._closing:
            self._is_closed = True
            os.close(self._read)
            os.close(self._write)

    def drain(self) -> None:
        try:
            os.read(self._read, 64)
        except BlockingIOError:
            return

    @contextmanager
    def heeded(self) -> Iterator[None]:
        """Count SIGINT and SIGTERM while the block runs instead of dying of them; main thread only."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before: dict[int, Any] = {
            number: signal.signal(number, self.note) for number in (signal.SIGINT, signal.SIGTERM)
        }
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


@contextmanager
def terminations_interrupt() -> Iterator[None]:
    """Let SIGTERM raise KeyboardInterrupt, as SIGINT does, so that what is open is closed.

    Not where somebody handles it already; elsewhere than in the main thread nothing.
    """
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def ignore_interrupts() -> dict[int, Any]:
    """Ignore SIGINT and SIGTERM from now on, and return what was done about them; main thread only."""
    return {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGTERM)}


@contextmanager
def undisturbed() -> Iterator[None]:
    """Ignore SIGINT and SIGTERM while the block runs, which must be short; in other threads nothing."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = ignore_interrupts()
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def wait_for(handles: Sequence[Handle], others: Sequence[Readable], timeout_s: float) -> None:
    """Wait until someone has something to say, or for so long; meanwhile send what waits to be sent."""
    poll = select.poll()
    for handle in handles:
        handle.flush()
        poll.register(handle, select.POLLIN)
    for other in others:
        poll.register(other, select.POLLIN)
    poll.poll(1e3 * timeout_s)
