"""Which requests each instance decodes, followed through inputs and decisions. Knows no time."""

from collections.abc import Callable
from typing import Any

from dora_rl.core import decisions as do
from dora_rl.core import inputs as told
from dora_rl.core.record import Record


class RequestPlace(Record, frozen=True):
    """An instance, and as what a request decodes there."""

    instance: int
    version: int
    is_evaluation: bool = False


class RequestPlaces:
    """Follows every request from instance to instance, and says when the number on one changes."""

    def __init__(self, changed: Callable[[RequestPlace, int], None]) -> None:
        """`changed` hears of a place that one request more (+1) or fewer (-1) decodes at."""
        self._changed = changed
        self._on: dict[int, set[int]] = {}
        self._place: dict[int, RequestPlace] = {}
        self._last: dict[int, RequestPlace] = {}
        """Where each request decoded last, while it waits for its environment or travels."""
        self._travelling: set[int] = set()
        self._handlers: dict[type[Record], Callable[[Any], None]] = {
            told.InstanceJoined: self._joined,
            told.InstanceLost: self._lost,
            do.Restart: self._lost,
            do.Start: self._started,
            do.Resume: self._resumed,
            told.Ended: self._removed,
            told.TurnEnded: self._removed,
            told.EpisodeEnded: self._removed,
            do.Abort: self._removed,
            do.Move: self._left,
            told.Moved: self._arrived,
            do.Interrupt: self._interrupted,
        }

    def follow(self, record: Record) -> None:
        """Take in one input or decision."""
        handler = self._handlers.get(type(record))
        if handler is not None:
            handler(record)

    def _joined(self, event: told.InstanceJoined) -> None:
        self._on[event.instance] = set()

    def _lost(self, event: told.InstanceLost | do.Restart) -> None:
        for trajectory in list(self._on.get(event.instance, ())):
            self._take_off(trajectory)

    def _started(self, start: do.Start) -> None:
        self._put(
            start.trajectory,
            RequestPlace(instance=start.instance, version=start.version, is_evaluation=start.evaluation),
        )

    def _resumed(self, resume: do.Resume) -> None:
        self._put_on(resume.trajectory, resume.instance)

    def _removed(self, record: told.Ended | told.TurnEnded | told.EpisodeEnded | do.Abort) -> None:
        self._travelling.discard(record.trajectory)
        self._take_off(record.trajectory)
        if not isinstance(record, told.TurnEnded):
            self._last.pop(record.trajectory, None)

    def _left(self, move: do.Move) -> None:
        if move.trajectory in self._place:
            self._travelling.add(move.trajectory)
            self._take_off(move.trajectory)

    def _arrived(self, moved: told.Moved) -> None:
        if moved.trajectory in self._travelling:
            self._put_on(moved.trajectory, moved.target)

    def _interrupted(self, interrupt: do.Interrupt) -> None:
        for trajectory in list(self._on[interrupt.instance]):
            self._put_on(trajectory, interrupt.instance, interrupt.version)

    def _put_on(self, trajectory: int, instance: int, version: int | None = None) -> None:
        """Let a request go on as what it was, on this instance."""
        last = self._last[trajectory]
        version = last.version if version is None else version
        self._put(
            trajectory, RequestPlace(instance=instance, version=version, is_evaluation=last.is_evaluation)
        )

    def _put(self, trajectory: int, place: RequestPlace) -> None:
        self._take_off(trajectory)
        self._travelling.discard(trajectory)
        self._place[trajectory] = self._last[trajectory] = place
        self._on[place.instance].add(trajectory)
        self._changed(place, +1)

    def _take_off(self, trajectory: int) -> None:
        if (place := self._place.pop(trajectory, None)) is not None:
            self._on[place.instance].discard(trajectory)
            self._changed(place, -1)
