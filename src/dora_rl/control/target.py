"""The controllers of R and S: as fresh as the hardware allows.

Where devices take turns, R goes to the level that a run played in small finds best (`control/turns.py`).
Elsewhere R is judged by what is lost: the share of each step's time for which the trainer starved. Over
`freshness_cost`, R rises; well under it, R sinks: quickly down to the level that a fluid model of the run
(`control/level.py`) finds sufficient, slowly below that. It rises only while R is what holds groups back,
and sinks where the window stalls, which more active groups would make worse.
"""

from dora_rl.control.durations import Durations
from dora_rl.control.estimates import Average, Estimates
from dora_rl.control.fleet import Fleet
from dora_rl.control.group_rounds import GroupRounds
from dora_rl.control.level import Flow, fresh_level
from dora_rl.control.turns import DevicesInTurn, FreshLevel
from dora_rl.control.window import Window

_LOOKS = 64
"""How often in a train step free slots are counted."""
_MOST_LOST = 0.1
"""Share of one step's time beyond which a loss says no more."""
_AIM = 0.75
"""Share of `freshness_cost` that R is steered to: what is lost scatters, and the cost is a limit."""
_RISES, _SINKS = 8, 4
"""Where devices take turns, R rises at a publish by at most an eighth of a batch, and sinks by a quarter."""
_LEAST_SEEN = 16
"""Groups that must have ended before their durations are believed."""


class Target:
    """The target number of active groups R: fixed, or the freshest level that costs little speed."""

    def __init__(
        self,
        *,
        window: Window,
        fleet: Fleet,
        durations: Durations,
        rounds: GroupRounds,
        estimates: Estimates,
        group_size: int,
        freshness_cost: float,
        fixed: int | None,
    ) -> None:
        self._window = window
        self._fleet = fleet
        self._durations = durations
        self._rounds = rounds
        self._level = FreshLevel()
        self._estimates = estimates
        self._group_size = group_size
        self._cost = _AIM * freshness_cost
        self._is_fixed = fixed is not None
        self.groups = fixed if fixed is not None else min(3 * window.batch_groups // 2, self._most)
        self._unused_s = 0.0
        self._looked_at = 0.0
        self._lost = Average(0.0)
        self._stalled = Average(0.0)

    def is_due(self, now: float) -> bool:
        """Whether it is time to look again what the target keeps from starting."""
        return (now - self._looked_at) * _LOOKS >= (self._estimates.train_s or 0.0)

    def noted(self, now: float, *, is_binding: bool) -> None:
        """Note whether the target keeps a group from starting that has a place: free slots are lost then."""
        if is_binding:
            running = sum(instance.num_running for instance in self._fleet)
            self._unused_s += (now - self._looked_at) * (1.0 - running / max(1, self._fleet.slots))
        self._looked_at = now

    def published(self, now: float, *, interval_s: float, starved_share: float, stalled_share: float) -> None:
        """A step ended; the trainer starved, or was stalled by the window, for these shares of its time."""
        if self._is_fixed:
            return
        # Where instances are full, the trainer starves whatever R is, as it does before the first batch.
        lost = min(_MOST_LOST, starved_share, self._unused_s / interval_s)
        self._unused_s = 0.0
        if self._window.newest > 1:
            self._lost.observe(lost)
            self._stalled.observe(min(_MOST_LOST, stalled_share))
        turns = self._turns()
        change = self._change(now, lost) if turns is None else self._change_in_turn(turns)
        self.groups = min(self._most, max(self._window.batch_groups, self.groups + change))

    def _change_in_turn(self, turns: DevicesInTurn) -> int:
        """By how much R changes where devices take turns: towards the level that a run in small names."""
        batch, level = self._window.batch_groups, self._level.found(turns, self._cost)
        return min(max(1, batch // _RISES), max(-max(1, batch // _SINKS), level - self.groups))

    def _change(self, now: float, last: float) -> int:
        """By how much R changes; on the average alone it would go on rising when nothing is lost any more."""
        batch, lost, stalled = self._window.batch_groups, self._lost.value, self._stalled.value
        if lost - stalled > self._cost:
            more = max(1, batch // 64, round((lost - stalled - self._cost) * batch))
            return more if last > self._cost else 0
        if stalled - lost > self._cost:
            return -max(1, round((stalled - lost - self._cost) * batch / 2))
        if max(lost, stalled) < 0.75 * self._cost:
            flow = self._flow(now)
            too_many = self.groups - (fresh_level(flow, self._cost) if flow is not None else self.groups)
            return -max(1, batch // 128, min(too_many, max(batch // 8, too_many // 2)))
        return 0

    def _flow(self, now: float) -> Flow | None:
        """What was learned so far, for the model; None while that is too little."""
        train_s, seen = self._estimates.train_s, self._durations.num_groups
        if train_s is None or seen < min(_LEAST_SEEN, self._window.batch_groups) or not len(self._fleet):
            return None
        return Flow(
            batch_groups=self._window.batch_groups,
            group_size=self._group_size,
            max_staleness=self._window.max_staleness,
            train_s=train_s,
            group_s=self._durations.group_quantiles(now),
            member_s=self._durations.member_quantiles(),
            round_cost=self._estimates.round_cost.believed(),
            instances=len(self._fleet),
            rows=float(self._fleet.slots),
            pass_rate=max(0.05, self._durations.pass_rate.value),
            halts=self._fleet.is_elastic,
        )

    def _turns(self) -> DevicesInTurn | None:
        """What was learned so far where devices take turns; None elsewhere, and while it is too little."""
        cost = self._estimates.round_cost.believed() if self._fleet.is_elastic else None
        if cost is None or len(self._rounds.complete) < min(_LEAST_SEEN, self._window.batch_groups):
            return None
        return DevicesInTurn(
            batch_groups=self._window.batch_groups,
            group_size=self._group_size,
            max_staleness=self._window.max_staleness,
            pause_s=self._durations.pause.value,
            groups=list(self._rounds.complete),
            prompt_tokens=self._rounds.prompt_tokens.value,
            cost=cost,
            instances=len(self._fleet),
            slots=self._fleet.slots,
            kv_tokens=float(sum(instance.kv_capacity for instance in self._fleet)),
            pass_rate=max(0.05, self._durations.pass_rate.value),
        )

    @property
    def _most(self) -> int:
        """The largest useful R, (S + 1) B: more groups could not all be trained in time."""
        return (self._window.max_staleness + 1) * self._window.batch_groups


class StalenessTarget:
    """The controller for S: the smallest bound at which the window does not stall, up to a limit."""

    def __init__(self, *, window: Window, limit: int) -> None:
        self._window = window
        self._limit = limit
        self._calm = 0

    def published(self, *, stall_share: float, oldest_taken: int) -> None:
        """A step ended: adjust S.

        `stall_share` of the step was window stall; `oldest_taken` was the greatest staleness in its batch.
        """
        if stall_share > 0.02 and self._window.max_staleness < self._limit:
            self._window.loosen(self._window.max_staleness + 1)
            self._calm = 0
        elif stall_share == 0.0 and oldest_taken < self._window.max_staleness:
            self._calm += 1
        else:
            self._calm = 0
        if self._calm >= 4 and self._window.tighten(self._window.max_staleness - 1):
            self._calm = 0
