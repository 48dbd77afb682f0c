"""A worker that a test talks to, and everything it said."""

import time
from collections.abc import Callable
from typing import Any, TypeVar

from dora_rl.launch.local import LocalHandle
from dora_rl.run import messages as say

LIMIT_S = 40.0
W = TypeVar("W")


class Talk:
    """A worker, and everything it said."""

    def __init__(self, worker: LocalHandle) -> None:
        self.worker = worker
        self.heard: list[Any] = []
        self._unread: list[Any] = []

    def until(self, is_it: Callable[[Any], bool], what: str) -> Any:
        """Wait for a word; an error that names it if it does not come."""
        deadline = time.monotonic() + LIMIT_S
        while time.monotonic() < deadline:
            self._unread += self.worker.receive()
            while self._unread:
                self.heard.append(self._unread.pop(0))
                if is_it(self.heard[-1]):
                    return self.heard[-1]
            assert self.worker.is_alive, f"it died before {what}; it said {self.heard[-3:]}"
            time.sleep(0.01)
        raise AssertionError(f"no {what} within {LIMIT_S} s; it said {self.heard[-3:]}")

    def word(self, kind: type[W]) -> W:
        found: W = self.until(lambda word: isinstance(word, kind), kind.__name__)
        return found

    def ended(self, id: int) -> say.RequestEnded:
        """Its end, whenever it was said."""

        def is_it(word: Any) -> bool:
            return isinstance(word, say.RequestEnded) and word.drawn.request == id

        found: say.RequestEnded | None = next(filter(is_it, self.heard), None)
        return found or self.until(is_it, f"end of {id}")

    def has_drawn(self, id: int) -> None:
        """Wait for some of its tokens."""
        self.until(
            lambda word: isinstance(word, say.Report) and any(drawn.request == id for drawn in word.drawn),
            f"tokens of {id}",
        )

    def forget(self, id: int) -> None:
        """Forget the turns of a request that ended so far, and what they drew."""
        self.heard = [
            word
            for word in self.heard
            if not (isinstance(word, say.RequestEnded | say.RequestExported) and word.drawn.request == id)
            and not (isinstance(word, say.Report) and any(drawn.request == id for drawn in word.drawn))
        ]

    def tokens(self, id: int) -> list[int]:
        """All it said about a request, put together."""
        drawn = [
            *(drawn for word in self.heard if isinstance(word, say.Report) for drawn in word.drawn),
            *(w.drawn for w in self.heard if isinstance(w, say.RequestEnded | say.RequestExported)),
        ]
        return [token for each in drawn if each.request == id for token in each.tokens]
