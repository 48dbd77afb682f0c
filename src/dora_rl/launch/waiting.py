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
from typing import Any, NoReturn, Protocol

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
        # A terminal that goes away may say so twice, by its shell and by the system: that is no impatience.
        if number != signal.SIGHUP or not self.count:
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
        """Count signals to end while the block runs instead of dying of them; main thread only."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before: dict[int, Any] = {number: signal.signal(number, self.note) for number in _to_end()}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


@contextmanager
def terminations_interrupt() -> Iterator[None]:
    """Let SIGTERM and SIGHUP raise KeyboardInterrupt, as SIGINT does, so that what is open is closed.

    Not where somebody handles or ignores them already; elsewhere than in the main thread nothing.
    """
    is_main = threading.current_thread() is threading.main_thread()
    unhandled = [number for number in _to_end() if signal.getsignal(number) is signal.SIG_DFL]
    for number in unhandled if is_main else ():
        signal.signal(number, _interrupted)
    try:
        yield
    finally:
        for number in unhandled if is_main else ():
            signal.signal(number, signal.SIG_DFL)


def _interrupted(number: int, frame: FrameType | None) -> NoReturn:
    """Raise KeyboardInterrupt; a terminal that is gone may say so again, while what is open is closed."""
    if number == signal.SIGHUP:
        signal.signal(number, signal.SIG_IGN)
    raise KeyboardInterrupt


def _to_end() -> tuple[signal.Signals, ...]:
    """Signals by which a run is asked to end; SIGHUP only where nobody, such as nohup, had it ignored."""
    has_hangups = signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN
    return (signal.SIGINT, signal.SIGTERM, *([signal.SIGHUP] if has_hangups else []))


def ignore_interrupts() -> dict[int, Any]:
    """Ignore signals to end from now on, and return what was done about them; main thread only."""
    return {number: signal.signal(number, signal.SIG_IGN) for number in _to_end()}


@contextmanager
def undisturbed() -> Iterator[None]:
    """Ignore signals to end while the block runs, which must be short; in other threads nothing."""
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
