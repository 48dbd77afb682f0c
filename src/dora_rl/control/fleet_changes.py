"""Changes of the fleet: carries out placement, and answers KV pressure and lending.

Triggers are the control plane's business (a publish, pressure, a timer, a join or a death); what to
change is the planner's. Here a plan becomes moves and loads, and instances change state.
"""

from collections.abc import Iterator, Mapping
from itertools import islice

from dora_rl.control.dispatch import Dispatch, Emit
from dora_rl.control.durations import Durations
from dora_rl.control.fleet import Cohort, Fleet, Instance, State
from dora_rl.control.ledger import Phase, Trajectory
from dora_rl.control.meters import Meters
from dora_rl.control.pace import Pace
from dora_rl.control.placement import PlacementPlanner, Situation
from dora_rl.control.role_demand import RoleDemand
from dora_rl.control.target import Target
from dora_rl.control.window import Window
from dora_rl.core.decisions import Drop, Interrupt, Lend, Load, Return
from dora_rl.core.recipe import Control

_MANY = 256
"""Number of trajectories whose longest one is taken for a version's slowest request."""
_PARKED = 2.0
"""Responses of mean length for whose time a request waits in host memory until others free their KV."""
_LOOKED_AT = 32
"""Requests that wait at either end of a cohort that are looked at for what waits longest."""
_RELIEF = 0.05
"""Share of an instance's KV that is freed when it reports pressure."""


class FleetChanges:
    """Changes which versions instances hold, frees KV under pressure, and lends instances to the trainer."""

    def __init__(
        self,
        fleet: Fleet,
        window: Window,
        target: Target,
        dispatch: Dispatch,
        pace: Pace,
        durations: Durations,
        role_demand: RoleDemand,
        meters: Meters,
        emit: Emit,
        *,
        control: Control,
        group_size: int,
    ) -> None:
        self._fleet = fleet
        self._window = window
        self._target = target
        self._dispatch = dispatch
        self._pace = pace
        self._estimates = pace.estimates
        self._durations = durations
        self._role_demand = role_demand
        self._meters = meters
        self._emit = emit
        self._control = control
        self._group_size = group_size
        self._planner = PlacementPlanner(fleet, pace.estimates, placement=control.placement)

    # --- rebalancing ---

    def rebalance(self, waiting: Mapping[int, int], now: float) -> None:
        """Plan placement anew and carry the plan out; `waiting` counts requests without a place by version.

        Without `control.rebalance` only where a version that is wanted is served by no instance.
        """
        if not self._control.rebalance and all(map(self._fleet.serving, {*waiting, self._window.newest})):
            return
        changes = self._planner.plan(self._situation(waiting, now))
        moved = {t.version for change in changes for t, _ in change.moves}
        for change in changes:
            instance = change.instance
            for t, target in change.moves:
                self._dispatch.move(t, self._fleet.instances[target], now)
            empty = [v for v, cohort in instance.cohorts.items() if not len(cohort)]
            dropped = [v for v in empty if v not in change.versions]
            missing = [v for v in change.versions if v not in instance.cohorts]
            stranded = [v for v in missing if v in waiting and not self._fleet.uses(v)]
            most = instance.spec.versions_that_fit - 1
            if stranded and len(instance.cohorts) - len(dropped) > most:
                # More versions than fit: what nobody serves goes before what is newer, or not waited for.
                dropped = [v for v in empty if v not in moved and (v not in waiting or v > stranded[0])]
            if missing and len(instance.cohorts) - len(dropped) <= most:
                self._load(instance, stranded[0] if stranded else missing[-1], tuple(dropped), now)
            elif not missing:
                for version in dropped:
                    self._fleet.drop(instance, version)
                    self._emit(Drop(instance=instance.id, version=version))

    def _situation(self, waiting: Mapping[int, int], now: float) -> Situation:
        newest, lengths = self._window.newest, self._estimates.lengths
        backlog = {version: count for version, count in waiting.items() if count}
        # The groups of the newest version that the bound and the target R would let start now, or as soon
        # as the idle trainer has its batch: the version is loaded while it waits.
        coming = 0 if self._pace.is_training else self._window.batch_groups
        planned = min(self._target.groups - self._window.num_active, self._window.room(newest)) + coming
        backlog[newest] = backlog.get(newest, 0) + max(0, planned) * self._group_size
        demands = {version: count * lengths.mean() for version, count in backlog.items()}
        longest = dict.fromkeys(demands, lengths.longest_of(_MANY))
        for instance in self._fleet:
            for version, cohort in instance.cohorts.items():
                if len(cohort):
                    tokens = (
                        lengths.cohort_tokens(cohort, instance.clock)
                        + (len(cohort) - len(cohort.running)) * lengths.mean()
                    )
                    demands[version] = demands.get(version, 0.0) + tokens
                    slowest = lengths.longest_of(_MANY) - cohort.progress(instance.clock)
                    longest[version] = max(longest.get(version, 0.0), slowest)
        roles = self._role_demand
        for version in roles.versions:
            expected = roles.expected_tokens(version, now)
            demands[version] = max(demands.get(version, 0.0), expected)
            longest.setdefault(version, roles.turn_tokens)
        # Whoever awaits a role's turn has a later deadline than the version that plays it.
        due = {version: newest if version in roles.versions else version for version in demands}
        return Situation(
            demands=demands,
            backlog=backlog,
            horizon_s=max(self._control.rebalance_period_s, self._pace.time_left_s(now)),
            slack_s={version: self._pace.slack_s(due[version], now) for version in demands},
            longest_s={version: tokens * self._estimates.step_s for version, tokens in longest.items()},
            parked_s=_PARKED * lengths.mean() * self._estimates.step_s,
        )

    def _load(self, instance: Instance, version: int, drop: tuple[int, ...], now: float) -> None:
        for old in drop:
            self._fleet.drop(instance, old)
        self._fleet.expect(instance, version)
        if not instance.cohorts:
            instance.state = State.LOADING
            self._fleet.hold(instance, version)
        self._meters.version_changes += 1
        self._estimates.load_began(instance.id, now)
        self._emit(Load(instance=instance.id, version=version, drop=drop))

    # --- KV pressure ---

    def relieve(self, instance: Instance, now: float) -> None:
        """Free a twentieth of an instance's KV.

        Requests that wait for their environment go first; then the largest move to where there is
        plenty; then the smallest park, on an instance that parks when it is told to.
        """
        goal = instance.kv_tokens - _RELIEF * instance.kv_capacity
        self._evict_waiting(instance, goal, now)
        running = [t for cohort in instance.cohorts.values() for t in cohort.running.values()]
        running = sorted((t for t in running if t.phase == Phase.RUNNING), key=lambda t: t.offset)
        while running and instance.kv_tokens > goal and self._control.rebalance:
            if not self._move_away(running[0], instance, now, reserve=_RELIEF * instance.kv_capacity):
                break
            running.pop(0)
        kept = instance.kv_tokens
        while instance.spec.parks and len(running) > 1 and kept > goal:
            t = running.pop()
            kept -= t.prompt_tokens + instance.clock - t.offset
            self._dispatch.park(t, instance)

    def _evict_waiting(self, instance: Instance, goal: float, now: float) -> None:
        for _, t in self._longest_waits(instance, now):
            if instance.kv_tokens <= goal:
                return
            self._let_go(t, instance)

    def drop_waiting(self, instance: Instance, tokens: int, now: float) -> None:
        """Make room for a request of `tokens`, where KV is what lacks, by dropping that of waiting requests.

        KV that is held for w seconds keeps its share of the instance from decoding for w seconds; computed
        again, or copied to host memory and back, it takes that share of the seconds that all its KV would.
        So what is expected to wait longer than the latter goes, the longest first, whatever its size;
        all, where nothing decodes. Where host memory has room and copying is the cheaper way, it is parked. A
        little more than this request needs: others will follow, and waits are not looked through for each.
        """
        has_room = self._fleet.has_room
        if not instance.num_waiting or not instance.has_slot() or has_room(instance, tokens):
            return
        at_stake = instance.kv_capacity if instance.num_running else 0
        enough = tokens + int(_RELIEF * instance.kv_capacity)
        for remaining_s, t in self._longest_waits(instance, now):
            is_parked = self._is_to_park(t, instance)
            token_s = 2.0 * self._estimates.copy_s if is_parked else self._estimates.prefill_s
            if remaining_s <= at_stake * token_s or has_room(instance, enough):
                return
            self._let_go(t, instance)

    def _is_to_park(self, t: Trajectory, instance: Instance) -> bool:
        """Whether KV of a waiting request is better copied to host memory and back than computed again."""
        has_room = t.prompt_tokens + t.tokens <= instance.host_room
        return has_room and 2.0 * self._estimates.copy_s < self._estimates.prefill_s

    def _let_go(self, t: Trajectory, instance: Instance) -> None:
        """Take the KV of a waiting request off the device, by the cheaper way."""
        if self._is_to_park(t, instance):
            self._dispatch.park_turn(t, instance)
        else:
            self._dispatch.evict(t, instance)

    def _longest_waits(self, instance: Instance, now: float) -> Iterator[tuple[float, Trajectory]]:
        """Requests that wait for their environment here, with the seconds expected, about the longest first.

        Whoever asks for the next has parked or evicted the last. Expected waits grow or shrink with the time
        waited, so of very many only those are looked at that have waited longest and shortest.
        """
        remaining = self._estimates.waits.remaining
        while waiting := [t for cohort in instance.cohorts.values() for t in self._first_and_last(cohort)]:
            waits = [(remaining(now - t.waits_since), t) for t in waiting]
            yield from sorted(waits, key=lambda wait: (-wait[0], wait[1].id))

    def _first_and_last(self, cohort: Cohort) -> Iterator[Trajectory]:
        """Requests of a cohort that wait and do not move; of very many those that came first and last."""
        moving, waiting = self._dispatch.moving, cohort.waiting.values()
        most = len(waiting) if len(waiting) <= 2 * _LOOKED_AT else _LOOKED_AT
        yield from islice((t for t in waiting if t.id not in moving), most)
        if most < len(waiting):
            yield from islice((t for t in reversed(waiting) if t.id not in moving), most)

    def _move_away(self, t: Trajectory, instance: Instance, now: float, *, reserve: float = 0.0) -> bool:
        """Move a request to an instance of its version with room for it and `reserve`; False if none has."""
        tokens = int(t.prompt_tokens + instance.clock - t.offset + reserve)
        target = self._fleet.roomiest(t.version, tokens)
        if target is None or target is instance:
            return False
        self._dispatch.move(t, target, now)
        return True

    # --- elastic devices ---

    def prepare_lending(self, now: float) -> list[Instance]:
        """Mark elastic instances as lent; their requests move where there is room, the others wait."""
        elastic = [i for i in self._fleet if i.spec.elastic and i.state in (State.UP, State.LOADING)]
        for instance in elastic:
            instance.state = State.LENT
        if all(instance.state is State.LENT for instance in self._fleet):
            self._durations.paused(now)
        for instance in elastic:
            for t in instance.requests():
                movable = self._control.rebalance and t.phase == Phase.RUNNING
                if movable and not self._move_away(t, instance, now):
                    break
        return elastic

    def lend(self, instances: list[Instance]) -> None:
        """Emit `Lend` for these instances: after the batch's own decisions, so that they decode meanwhile."""
        for instance in instances:
            self._emit(Lend(instance=instance.id))

    def give_back(self, now: float) -> None:
        """Return the lent instances from the trainer: they generate again."""
        for instance in self._fleet:
            if instance.state is State.LENT:
                self._emit(Return(instance=instance.id))
                instance.state, instance.last_seen = State.RETURNING, now

    def renew_returning(self, now: float) -> None:
        """Load the version just published on returning instances that have nothing to do."""
        newest = self._window.newest
        for instance in self._fleet:
            is_free = instance.is_idle and instance.loading is None
            if instance.state is State.RETURNING and is_free and newest not in instance.cohorts:
                kept = self._role_demand.versions if instance.spec.versions_that_fit > 1 else ()
                self._load(instance, newest, tuple(v for v in instance.cohorts if v not in kept), now)
                instance.state = State.RETURNING

    def returned(self, instance: Instance) -> None:
        """An instance has its devices back: it generates, or loads its version first."""
        instance.state = State.LOADING if list(instance.cohorts) == [instance.loading] else State.UP
        self._fleet.touch(instance)
        self._durations.resumed(instance.last_seen)

    # --- schedule `partial` ---

    def interrupt(self, version: int) -> None:
        """Schedule `partial`: let all unfinished trajectories go on under `version`, as a new segment."""
        for instance in self._fleet:
            requests = instance.requests()
            for t in requests:
                instance.remove(t)
            for old in tuple(instance.cohorts):
                self._fleet.drop(instance, old)
            self._fleet.hold(instance, version)
            for t in requests:
                t.version = version
                t.segments = (*t.segments, (version, t.tokens))
                instance.add(t)
            self._fleet.expect(instance, version)
            if instance.state is State.UP:
                instance.state = State.LOADING
            self._emit(Interrupt(instance=instance.id, version=version))
        self._dispatch.repin(version)
