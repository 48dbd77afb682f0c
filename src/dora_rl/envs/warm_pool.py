"""Expensive objects, such as environments, that are made ahead and checked before they are handed out."""

import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Generic, TypeVar

T = TypeVar("T")

_FIRST_PAUSE_S = 1.0
_LONGEST_PAUSE_S = 60.0


def _close(item: Any) -> None:
    """Close what has a method for that."""
    if callable(close := getattr(item, "close", None)):
        close()


class WarmPool(Generic[T]):
    """Keeps a few objects ready; each belongs to one taker at a time.

    A thread makes them, from the first `take` on. Where none is ready the taker makes one itself, and gets
    the error if that fails; the thread pauses after an error, each time for longer.
    """

    def __init__(
        self,
        make: Callable[[], T],
        *,
        size: int,
        check: Callable[[T], bool] = lambda item: True,
        close: Callable[[T], None] = _close,
        is_reused: bool = False,
        pause_s: float = _FIRST_PAUSE_S,
    ) -> None:
        """`size` objects are ready ahead; `check` says whether one can still be used when it is handed out.

        `is_reused`: what comes back from a taker without an error is handed out again, else it is closed.
        `pause_s` is the pause after a first error.
        """
        self._make = make
        self._size = size
        self._check = check
        self._close_item = close
        self._is_reused = is_reused
        self._pause_s = pause_s
        self._ready: deque[T] = deque()
        self._changed = threading.Condition()
        self._is_closed = False
        self._filler: threading.Thread | None = None
        self.num_broken = 0
        """Objects that did not pass the check when they were to be handed out."""

    def take(self) -> T:
        """An object that passed the check, now the caller's alone; blocks while one is made."""
        while (item := self._next()) is not None:
            if self._passes(item[0]):
                return item[0]
        return self._make()

    def give_back(self, item: T) -> None:
        """Take an object back: for the next taker if they are reused, else to close it."""
        self._keep(item, is_wanted=self._is_reused)

    @contextmanager
    def lent(self) -> Iterator[T]:
        """An object for the time of a block; one in whose block something is raised is not reused."""
        item = self.take()
        try:
            yield item
        except BaseException:
            self._close_item(item)
            raise
        self.give_back(item)

    def close(self) -> None:
        """Close what is ready and make no more; what is lent is closed when it comes back."""
        with self._changed:
            self._is_closed = True
            ready, self._ready = self._ready, deque()
            self._changed.notify_all()
        for item in ready:
            self._close_item(item)

    def _next(self) -> tuple[T] | None:
        """The object that has been ready for longest, if there is one; has another made in its place."""
        with self._changed:
            if self._is_closed:
                raise RuntimeError("the pool is closed")
            if self._filler is None and self._size:
                self._filler = threading.Thread(target=self._fill, name="warm pool", daemon=True)
                self._filler.start()
            item = (self._ready.popleft(),) if self._ready else None
            self._changed.notify_all()
            return item

    def _passes(self, item: T) -> bool:
        try:
            passes = self._check(item)
        except Exception:  # what cannot be checked cannot be used either
            passes = False
        if not passes:
            self.num_broken += 1
            self._close_item(item)
        return passes

    def _fill(self) -> None:
        """Keep the pool full until it is closed."""
        pause_s = self._pause_s
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._is_closed or len(self._ready) < self._size)
                if self._is_closed:
                    return
            try:
                item = self._make()
            except Exception:  # takers get the same error, from their own tries
                with self._changed:
                    self._changed.wait_for(lambda: self._is_closed, timeout=pause_s)
                pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
                continue
            pause_s = self._pause_s
            self._keep(item, is_wanted=True)

    def _keep(self, item: T, *, is_wanted: bool) -> None:
        with self._changed:
            is_kept = is_wanted and not self._is_closed
            if is_kept:
                self._ready.append(item)
        if not is_kept:
            self._close_item(item)
