"""Which request is where, and the tokens that are journalled of every running trajectory.

A request's number is given at its Start and never again, so a late word about an earlier one finds nothing
here and is dropped. Drafts outlive requests: from them a trajectory goes on elsewhere.
"""

from collections.abc import Iterator

from msgspec import Struct, field

from dora_rl.core.decisions import Start


class Draft(Struct, kw_only=True):
    """What is known of a trajectory that is being generated."""

    attempt: int
    start: Start
    """The newest: what names its prompt and its random stream."""
    tokens: list[int] = field(default_factory=list)


class Placed(Struct, kw_only=True):
    """A request on an instance."""

    number: int
    trajectory: int
    instance: int
    is_arriving: bool = False
    """It was sent there by a move and has not been taken in."""


class Requests:
    """All requests of a run."""

    def __init__(self) -> None:
        self.drafts: dict[int, Draft] = {}
        self._placed: dict[int, Placed] = {}
        self._of_trajectory: dict[int, Placed] = {}
        self._next = 0

    def place(self, trajectory: int, instance: int, *, is_arriving: bool = False) -> Placed:
        """A trajectory has a request there; an earlier one is forgotten."""
        self.forget(trajectory)
        placed = Placed(number=self._next, trajectory=trajectory, instance=instance, is_arriving=is_arriving)
        self._next += 1
        self._placed[placed.number] = self._of_trajectory[trajectory] = placed
        return placed

    def find(self, number: int, instance: int) -> Placed | None:
        """The request an instance speaks of, if it is still there."""
        placed = self._placed.get(number)
        return placed if placed is not None and placed.instance == instance else None

    def of(self, trajectory: int) -> Placed | None:
        return self._of_trajectory.get(trajectory)

    def on(self, instance: int) -> Iterator[Placed]:
        return (placed for placed in list(self._placed.values()) if placed.instance == instance)

    def forget(self, trajectory: int) -> Placed | None:
        """It has no request any more."""
        placed = self._of_trajectory.pop(trajectory, None)
        if placed is not None:
            del self._placed[placed.number]
        return placed

    def draft(self, start: Start) -> Draft:
        """What exists of a trajectory that starts: nothing, if this is another attempt."""
        draft = self.drafts.get(start.trajectory)
        if draft is None or draft.attempt != start.attempt:
            draft = self.drafts[start.trajectory] = Draft(attempt=start.attempt, start=start)
        draft.start = start
        return draft
