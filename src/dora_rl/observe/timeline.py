"""The timeline of a run: who generated which version when, and when the trainer trained or waited.

Built from inputs and decisions alone, as a watcher of a simulation or from an event log. Knows no colours.
"""

from collections.abc import Callable
from typing import Any

from dora_rl.core import decisions as do
from dora_rl.core import inputs as told
from dora_rl.core.decisions import Decision
from dora_rl.core.inputs import Input
from dora_rl.core.instance_spec import InstanceSpec
from dora_rl.core.record import Record
from dora_rl.costs.request_places import RequestPlace, RequestPlaces


class TimelineSpan(Record, frozen=True):
    """A stretch of time in seconds and what it was: a kind of wait, the number of a batch, an instance."""

    begin: float
    end: float
    what: str | int


class LoadPoint(Record, frozen=True):
    """A change of an instance's load: from `at` on, `running` requests of `version` decode."""

    at: float
    version: int
    running: int


class Timeline(Record, frozen=True, gc=True):
    """The timeline of one run, ready to be drawn; times in seconds of the run."""

    end: float
    specs: dict[int, InstanceSpec]
    loads: dict[int, list[LoadPoint]]
    """Changes of load of each instance, in order."""
    lent: list[TimelineSpan]
    """Spans in which an elastic instance was with the trainer."""
    down: list[TimelineSpan]
    """Spans in which an instance was gone."""
    trained: list[TimelineSpan]
    """Spans in which a batch was trained on."""
    waited: list[TimelineSpan]
    """Spans in which the trainer waited, by reason."""
    published: list[float]
    """Seconds at which each version was published, from version 1 on."""


class Tracker:
    """Follows requests over instances; its `watch` is a watcher of the run."""

    def __init__(self, *, keeps_history: bool = True) -> None:
        """Without history only the present load is known, in memory that does not grow with the run."""
        self._keeps_history = keeps_history
        self._now = 0.0
        self._specs: dict[int, InstanceSpec] = {}
        self._loads: dict[int, list[LoadPoint]] = {}
        self._running: dict[tuple[int, int], int] = {}
        self._places = RequestPlaces(self._count)
        self._lent, self._down, self._steps, self._waits = Spans(), Spans(), Spans(), Spans()
        self._published: list[float] = []
        self._handlers: dict[type[Record], Callable[[Any], None]] = {
            told.InstanceJoined: self._joined,
            told.InstanceLost: self._lost,
            do.Restart: self._lost,
            told.Lent: lambda e: self._lent.open(e.instance, self._now),
            told.Returned: lambda e: self._lent.close(e.instance, self._now),
            do.Wait: self._waiting,
            do.Take: self._took,
            told.Published: self._publish,
            told.StepLost: lambda e: self._steps.close_all(self._now),
        }

    def watch(self, event: Input, decisions: list[Decision]) -> None:
        self._now = event.at
        for record in (event, *decisions):
            handler = self._handlers.get(type(record))
            if handler is not None:
                handler(record)
            self._places.follow(record)

    @property
    def running(self) -> dict[int, dict[int, int]]:
        """Number of requests that decode now, by instance and version."""
        by_instance: dict[int, dict[int, int]] = {instance: {} for instance in sorted(self._specs)}
        for (instance, version), running in sorted(self._running.items()):
            if running:
                by_instance[instance][version] = running
        return by_instance

    def timeline(self) -> Timeline:
        """The timeline up to the last input; needs a tracker that keeps history."""
        assert self._keeps_history, "this tracker kept nothing to draw"
        return Timeline(
            end=self._now,
            specs=self._specs,
            loads=self._loads,
            lent=self._lent.all_until(self._now),
            down=self._down.all_until(self._now),
            trained=self._steps.all_until(self._now),
            waited=self._waits.all_until(self._now),
            published=self._published,
        )

    # --- instances ---

    def _joined(self, event: told.InstanceJoined) -> None:
        self._specs[event.instance] = event.spec
        self._loads.setdefault(event.instance, [])
        self._down.close(event.instance, self._now)

    def _lost(self, event: told.InstanceLost | do.Restart) -> None:
        self._lent.close(event.instance, self._now)
        self._down.open(event.instance, self._now)

    def _count(self, place: RequestPlace, change: int) -> None:
        key = (place.instance, place.version)
        running = self._running[key] = self._running.get(key, 0) + change
        if self._keeps_history:
            self._loads[place.instance].append(
                LoadPoint(at=self._now, version=place.version, running=running)
            )

    # --- trainer ---

    def _waiting(self, decision: do.Wait) -> None:
        self._waits.close_all(self._now)
        self._waits.open(decision.reason, self._now)

    def _took(self, decision: do.Take) -> None:
        self._waits.close_all(self._now)
        self._steps.open(decision.batch, self._now)

    def _publish(self, event: told.Published) -> None:
        self._steps.close_all(self._now)
        self._published.append(self._now)


class Spans:
    """Spans of time by what they were, some of them still open."""

    def __init__(self) -> None:
        self._closed: list[TimelineSpan] = []
        self._open: dict[str | int, float] = {}

    def open(self, what: str | int, now: float) -> None:
        self._open.setdefault(what, now)

    def close(self, what: str | int, now: float) -> None:
        if (begin := self._open.pop(what, None)) is not None:
            self._closed.append(TimelineSpan(begin=begin, end=now, what=what))

    def close_all(self, now: float) -> None:
        for what in list(self._open):
            self.close(what, now)

    def all_until(self, now: float) -> list[TimelineSpan]:
        self.close_all(now)
        return self._closed
