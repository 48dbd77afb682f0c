"""The thread that trackers are called in: a server that is slow or gone must not hold up the run's own loop.

Calls wait in a bounded queue, in order. Knows neither rows nor trackers.
"""

import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TextIO, cast

Call = Callable[[], None]


class TrackerThread:
    """Makes calls one after the other, in a thread that no process waits for when it ends."""

    def __init__(self, most_waiting: int) -> None:
        self._most_waiting = most_waiting
        self._waiting: deque[Call] = deque()
        self._changed = threading.Condition()
        self._is_over = False
        self.error: BaseException | None = None
        """What a call raised; none is made after it."""
        self._thread = threading.Thread(target=self._work, name="trackers", daemon=True)
        self._thread.start()

    def give(self, call: Call) -> bool:
        """Have a call made after those that wait; False, and it is not, where too many do."""
        with self._changed:
            if len(self._waiting) >= self._most_waiting:
                return False
            self._waiting.append(call)
            self._changed.notify_all()
            return True

    @property
    def num_waiting(self) -> int:
        """Calls that are not done; one that is being made is among them."""
        return len(self._waiting)

    def wait(self, at_most_s: float) -> bool:
        """Wait until all calls are done, or one has raised; False if they take longer."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._waiting or self.error is not None, at_most_s)

    def stop(self) -> bool:
        """Have no more calls made; whether none is going on."""
        with self._changed:
            self._is_over = True
            self._changed.notify_all()
        # One that goes on now may go on for ever.
        self._thread.join(0.2)
        return not self._thread.is_alive()

    def _work(self) -> None:
        while (call := self._next()) is not None:
            try:
                call()
            except BaseException as error:  # raised again by whoever gave the call
                self.error = error
            with self._changed:
                if self.error is None:
                    self._waiting.popleft()
                self._changed.notify_all()

    def _next(self) -> Call | None:
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._is_over or self.error is not None)
            return None if self._is_over or self.error is not None else self._waiting[0]


class StdoutByThread:
    """The stdout of a process, once installed, from which a thread may be turned away to stderr."""

    def __init__(self) -> None:
        self._stdout = sys.stdout
        self._here = threading.local()

    def install(self) -> None:
        """Put this in the place of the process's own stdout."""
        sys.stdout = cast(TextIO, self)

    @contextmanager
    def turned_away(self) -> Iterator[None]:
        """Send what this thread prints while the block runs to stderr, and nothing of other threads."""
        self._here.is_turned_away = True
        try:
            yield
        finally:
            self._here.is_turned_away = False

    def restore(self) -> None:
        """Put the process's own stdout back."""
        if sys.stdout is self:
            sys.stdout = self._stdout

    def __getattr__(self, name: str) -> Any:
        return getattr(sys.stderr if getattr(self._here, "is_turned_away", False) else self._stdout, name)
