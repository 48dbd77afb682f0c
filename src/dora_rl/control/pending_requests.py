"""Requests that are pinned to a version and wait for a place on an instance that serves it."""

from collections import deque
from collections.abc import Iterable, Iterator

from dora_rl.control.ledger import Trajectory


class PendingRequests:
    """The requests of one version: those that had a place before come first, each kind in its order.

    A request that comes back from its environment is larger than a new one, and would be overtaken for ever;
    among those that come back, the one that has waited longest is next.
    """

    __slots__ = ("_again", "_new")

    def __init__(self, new: Iterable[Trajectory] = ()) -> None:
        self._again: deque[Trajectory] = deque()
        self._new = deque(new)

    def __len__(self) -> int:
        return len(self._again) + len(self._new)

    def __iter__(self) -> Iterator[Trajectory]:
        yield from self._again
        yield from self._new

    @property
    def next(self) -> Trajectory:
        """The request that starts next; there must be one."""
        return self._again[0] if self._again else self._new[0]

    def add(self, t: Trajectory, *, is_back: bool = False) -> None:
        """Let a request wait behind the others of its kind: those that come back, or the new ones."""
        (self._again if is_back else self._new).append(t)

    def put_first(self, t: Trajectory) -> None:
        """Let a request wait before all others: its instance is gone."""
        self._again.appendleft(t)

    def take(self) -> Trajectory:
        """Remove and return the request that starts next."""
        return (self._again or self._new).popleft()

    def remove(self, t: Trajectory) -> None:
        """Let a request wait no longer; one that does not wait is no news."""
        for queue in (self._again, self._new):
            if t in queue:
                queue.remove(t)
