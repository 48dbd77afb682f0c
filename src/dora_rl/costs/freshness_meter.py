"""How fresh a run trained, beside the least staleness that its own trace allows.

Watches the inputs and decisions of a run, live, simulated or read from its event log.
"""

from collections.abc import Callable
from typing import Any

from dora_rl.core import decisions as do
from dora_rl.core import inputs as told
from dora_rl.core.decisions import Decision
from dora_rl.core.inputs import Input
from dora_rl.core.record import Record
from dora_rl.costs.least_staleness import least_mean_staleness


class Freshness(Record, frozen=True):
    """Mean staleness of a run's middle steps, and the least that their groups and publishes allow."""

    staleness_mean: float
    staleness_least: float
    first_batch: int
    num_batches: int


class FreshnessMeter:
    """Follows takes, publishes and how long each trajectory takes; `result` compares."""

    def __init__(self, max_staleness: int) -> None:
        self._margin = max_staleness + 1
        self._clock = _GeneratingClock()
        self._published: list[float] = []
        self._taken: dict[int, tuple[float, do.Take]] = {}
        self._group_of: dict[int, int] = {}
        self._tokens: dict[int, int] = {}
        self._waits_s: dict[int, float] = {}
        self._turn_ended: dict[int, float] = {}
        self._started: dict[int, float] = {}
        self._fastest_s = float("inf")
        self._fastest_seen_s = float("inf")
        """Fewest seconds a token of a whole trajectory, for engines that report no step time."""
        self._follow: dict[type[Record], Callable[[Any], None]] = {
            told.LoadReport: self._reported,
            told.Ended: self._ended,
            told.EpisodeEnded: self._ended,
            told.TurnEnded: self._turned,
            told.EnvironmentReplied: self._replied,
            told.Published: self._publish,
        }

    def watch(self, event: Input, decisions: list[Decision]) -> None:
        self._clock.watch(event)
        if type(event) in self._follow:
            self._follow[type(event)](event)
        for decision in decisions:
            if isinstance(decision, do.Start) and not decision.is_aside:
                self._group_of[decision.trajectory] = decision.group
                self._started.setdefault(decision.trajectory, self._clock.at(event.at))
                if not self._published:
                    self._published.append(self._clock.at(event.at))
            elif isinstance(decision, do.Take):
                self._taken[decision.batch] = (self._clock.at(event.at), decision)

    def _reported(self, event: told.LoadReport) -> None:
        if event.step_s > 0.0:
            self._fastest_s = min(self._fastest_s, event.step_s)

    def _ended(self, event: told.Ended | told.EpisodeEnded) -> None:
        self._tokens[event.trajectory] = event.tokens
        if event.tokens and (since := self._started.pop(event.trajectory, None)) is not None:
            seconds = self._clock.at(event.at) - since - self._waits_s.get(event.trajectory, 0.0)
            self._fastest_seen_s = min(self._fastest_seen_s, seconds / event.tokens)

    def _turned(self, event: told.TurnEnded) -> None:
        self._turn_ended[event.trajectory] = event.at

    def _replied(self, event: told.EnvironmentReplied) -> None:
        if (since := self._turn_ended.pop(event.trajectory, None)) is not None:
            self._waits_s[event.trajectory] = self._waits_s.get(event.trajectory, 0.0) + event.at - since

    def _publish(self, event: told.Published) -> None:
        self._published.append(self._clock.at(event.at))

    def result(self) -> Freshness | None:
        """Mean and least over the middle steps: not the first 2 (S + 1), nor the last S + 1; None if none."""
        middle = [m for m in sorted(self._taken) if 2 * self._margin <= m < len(self._taken) - self._margin]
        if not middle:
            return None
        staleness = [s for m in middle for s in self._taken[m][1].staleness]
        duration = self._durations()
        return Freshness(
            staleness_mean=sum(staleness) / len(staleness),
            staleness_least=least_mean_staleness(
                [duration.get(group, 0.0) for m in middle for group in self._taken[m][1].groups],
                self._published,
                [(m, self._taken[m][0]) for m in middle],
            ),
            first_batch=middle[0],
            num_batches=len(middle),
        )

    def _durations(self) -> dict[int, float]:
        """Seconds of each group: its longest member at the fastest step time seen, and its waits."""
        fastest_s = self._fastest_s if self._fastest_s < float("inf") else self._fastest_seen_s
        durations: dict[int, float] = {}
        for trajectory, tokens in self._tokens.items():
            if (group := self._group_of.get(trajectory)) is not None:
                seconds = tokens * fastest_s + self._waits_s.get(trajectory, 0.0)
                durations[group] = max(durations.get(group, 0.0), seconds)
        return durations


class _GeneratingClock:
    """The seconds in which at least one instance could generate."""

    def __init__(self) -> None:
        self._joined: set[int] = set()
        self._lent: set[int] = set()
        self._seconds = 0.0
        self._since: float | None = None

    def watch(self, event: Input) -> None:
        match event:
            case told.InstanceJoined():
                self._joined.add(event.instance)
                self._lent.discard(event.instance)
            case told.InstanceLost():
                self._joined.discard(event.instance)
            case told.Lent():
                self._lent.add(event.instance)
            case told.Returned():
                self._lent.discard(event.instance)
            case _:
                return
        is_possible = bool(self._joined - self._lent)
        if self._since is not None and not is_possible:
            self._seconds, self._since = self.at(event.at), None
        elif self._since is None and is_possible:
            self._since = event.at

    def at(self, now: float) -> float:
        """Generating seconds up to a moment."""
        return self._seconds + (now - self._since if self._since is not None else 0.0)
