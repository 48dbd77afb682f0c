"""Steering: carries out changes of placement, and answers KV pressure and lending.

Triggers are the control plane's business (a publish, pressure, a timer, a join or a death); what to
change is the planner's. Here a plan becomes moves and loads, and instances change state.
"""

from collections.abc import Mapping

from dora_rl.control.dispatch import Dispatch, Emit
from dora_rl.control.fleet import Fleet, Instance, Lane, State
from dora_rl.control.ledger import Phase, Trajectory
from dora_rl.control.meters import Meters
from dora_rl.control.pace import Pace
from dora_rl.control.placement import Change, Planner, Situation
from dora_rl.control.window import Window
from dora_rl.core.decisions import Drop, GiveBack, Interrupt, Lend, Load
from dora_rl.core.recipe import Control

_MANY = 256
"""Trajectories among which the longest stands for a version's slowest."""
_RELIEF = 0.05
"""Share of the KV that an answer to pressure frees."""


class Steering:
    """Versions on instances."""

    def __init__(
        self,
        fleet: Fleet,
        window: Window,
        dispatch: Dispatch,
        pace: Pace,
        meters: Meters,
        emit: Emit,
        *,
        control: Control,
    ) -> None:
        self._fleet = fleet
        self._window = window
        self._dispatch = dispatch
        self._pace = pace
        self._estimates = pace.estimates
        self._meters = meters
        self._emit = emit
        self._control = control
        self._planner = Planner(fleet, pace.estimates, placement=control.placement)

    # --- rebalancing ---

    def rebalance(self, waiting: Mapping[int, int], planned: int, now: float) -> None:
        """Look at placement again: `waiting` requests by version, `planned` ones of the newest to come."""
        situation = self._situation(waiting, planned, now)
        for change in self._planner.plan(situation):
            self._carry_out(change, now)

    def _situation(self, waiting: Mapping[int, int], planned: int, now: float) -> Situation:
        newest, lengths = self._window.newest, self._estimates.lengths
        backlog = {version: count for version, count in waiting.items() if count}
        backlog[newest] = backlog.get(newest, 0) + planned
        demands = {version: count * lengths.mean() for version, count in backlog.items()}
        longest = dict.fromkeys(demands, lengths.longest_of(_MANY))
        for instance in self._fleet:
            for version, lane in instance.lanes.items():
                if len(lane):
                    tokens = lengths.lane_tokens(lane, instance.clock) + len(lane.waiting) * lengths.mean()
                    demands[version] = demands.get(version, 0.0) + tokens
                    slowest = lengths.longest_of(_MANY) - lane.progress(instance.clock)
                    longest[version] = max(longest.get(version, 0.0), slowest)
        return Situation(
            demands=demands,
            backlog=backlog,
            horizon_s=max(self._control.rebalance_period_s, self._pace.time_left_s(now)),
            slack_s={version: self._pace.slack_s(version, now) for version in demands},
            longest_s={version: tokens * self._estimates.step_s for version, tokens in longest.items()},
        )

    def _carry_out(self, change: Change, now: float) -> None:
        instance = change.instance
        for t, target in change.moves:
            self._dispatch.move(t, self._fleet.instances[target], now)
        foreign = tuple(v for v, lane in instance.lanes.items() if v not in change.versions and not len(lane))
        missing = [v for v in change.versions if v not in instance.lanes]
        kept = [v for v in instance.lanes if v not in foreign]
        if missing and len(kept) < instance.spec.versions_that_fit:
            self._load(instance, missing[-1], foreign, now)
        elif not missing:
            self._drop(instance, foreign)

    def _load(self, instance: Instance, version: int, drop: tuple[int, ...], now: float) -> None:
        for old in drop:
            del instance.lanes[old]
        instance.loading = version
        if not instance.lanes:
            instance.state = State.LOADING
            instance.lanes[version] = Lane()
        self._meters.version_changes += 1
        self._estimates.load_began(instance.id, now)
        self._emit(Load(instance=instance.id, version=version, drop=drop))

    def _drop(self, instance: Instance, versions: tuple[int, ...]) -> None:
        for version in versions:
            del instance.lanes[version]
            self._emit(Drop(instance=instance.id, version=version))

    def loaded(self, instance: Instance, version: int) -> None:
        instance.loading = None
        instance.lanes.setdefault(version, Lane())
        if instance.state is State.LOADING:
            instance.state = State.UP
        self._fleet.touch(instance)

    def uses(self, version: int) -> bool:
        """Does any instance hold or load this version?"""
        return any(version in i.lanes or i.loading == version for i in self._fleet)

    # --- KV pressure ---

    def relieve(self, instance: Instance, now: float) -> None:
        """Free a twentieth of the KV: the largest requests move to where there is plenty, or the smallest park."""
        goal = instance.kv_tokens - _RELIEF * instance.kv_capacity
        running = [t for lane in instance.lanes.values() for t in lane.running.values()]
        running = sorted((t for t in running if t.phase == Phase.RUNNING), key=lambda t: t.offset)
        while running and instance.kv_tokens > goal and self._control.rebalance:
            if not self._move_away(running[0], instance, now, reserve=_RELIEF * instance.kv_capacity):
                break
            running.pop(0)
        kept = instance.kv_tokens
        while len(running) > 1 and kept > goal:
            t = running.pop()
            kept -= t.prompt_tokens + instance.clock - t.offset
            self._dispatch.park(t, instance)

    def _move_away(self, t: Trajectory, instance: Instance, now: float, *, reserve: float = 0.0) -> bool:
        """Move a request to an instance of its version with room to spare."""
        tokens = int(t.prompt_tokens + instance.clock - t.offset + reserve)
        target = self._fleet.roomiest(t.version, tokens)
        if target is None or target is instance:
            return False
        self._dispatch.move(t, target, now)
        return True

    # --- elastic devices ---

    def lend(self, now: float) -> None:
        """Elastic instances train: their requests move where there is room, the others wait."""
        elastic = [i for i in self._fleet if i.spec.elastic and i.state is not State.LENT]
        for instance in elastic:
            instance.state = State.LENT
        for instance in elastic:
            for t in instance.requests():
                movable = self._control.rebalance and t.phase == Phase.RUNNING
                if movable and not self._move_away(t, instance, now):
                    break
            self._emit(Lend(instance=instance.id))

    def give_back(self, now: float) -> None:
        """Training is over: elastic instances generate again, empty ones under the newest version."""
        for instance in self._fleet:
            if instance.state is State.LENT:
                self._emit(GiveBack(instance=instance.id))
                if instance.is_idle and self._window.newest not in instance.lanes:
                    self._load(instance, self._window.newest, tuple(instance.lanes), now)
                    instance.state = State.LENT

    def returned(self, instance: Instance) -> None:
        instance.state = State.LOADING if instance.loading is not None and self._is_bare(instance) else State.UP
        self._fleet.touch(instance)

    @staticmethod
    def _is_bare(instance: Instance) -> bool:
        return list(instance.lanes) == [instance.loading]

    # --- schedule `partial` ---

    def interrupt(self, version: int) -> None:
        """Everything unfinished goes on under `version`; the record keeps where each stretch began."""
        for instance in self._fleet:
            requests = instance.requests()
            for t in requests:
                instance.remove(t)
            instance.lanes = {version: Lane()}
            for t in requests:
                t.version = version
                t.segments = (*t.segments, (version, t.tokens))
                instance.add(t)
            instance.loading = version
            if instance.state is State.UP:
                instance.state = State.LOADING
            self._emit(Interrupt(instance=instance.id, version=version))
        self._dispatch.repin(version)
