"""Placement: which instance serves which version, and which requests move for it.

A planner over the fleet as it was last reported: it decides, it changes nothing. Completed from the
paper's Algorithm 1: exact shares by expected work, the assignment that keeps the most KV where it
is, requests spread by load, and no change whose cost exceeds its gain.
"""

import heapq
from collections.abc import Callable, Iterable, Mapping
from math import ceil
from typing import Literal

from dora_rl.control.assignment import assign
from dora_rl.control.estimates import Estimates
from dora_rl.control.fleet import Fleet, Instance, State
from dora_rl.control.ledger import Trajectory
from dora_rl.control.shares import Bin, exclusive_bins, largest_remainder, merged_bins
from dora_rl.core.record import Record

Placement = Literal["auto", "exclusive", "shared"]

_FULL = 0.93
"""Share of an instance's KV up to which requests are moved onto it: they will still grow."""
_PACKED = 1.1
"""The same for versions with time to spare: what finds no room waits in host memory until others end."""

_UNTOUCHABLE = 1e15
"""Tokens of KV counted for a version that an instance is loading, so that no plan reassigns it."""


class Change:
    """One instance gets another set of versions; the requests that cannot stay move first."""

    __slots__ = ("instance", "moves", "versions")

    def __init__(self, instance: Instance, versions: Bin, moves: list[tuple[Trajectory, int]]) -> None:
        self.instance = instance
        self.versions = versions
        self.moves = moves


class Situation(Record, frozen=True, gc=True):
    """What the planner needs to know beyond the fleet: demands, backlog and times by version."""

    demands: Mapping[int, float]
    """Expected tokens left, by version; the newest includes what will be admitted next."""
    backlog: Mapping[int, int]
    """Number of requests that wait for a place now, by version."""
    horizon_s: float
    """Seconds for which a change will be of use: the time to the next publish."""
    slack_s: Mapping[int, float]
    """Seconds until a version's deadline, by version."""
    longest_s: Mapping[int, float]
    """Seconds that a version's slowest running request should need on an instance of its own."""
    parked_s: float
    """Seconds for which a request that finds no KV where it is moved should wait."""

    def full(self, version: int) -> float:
        """Share of an instance's KV up to which requests of this version are moved onto it."""
        needed_s = self.longest_s.get(version, 0.0) + self.parked_s
        return _PACKED if needed_s <= self.slack_s.get(version, 0.0) else _FULL


class PlacementPlanner:
    """Plans which instances change versions, from the demand of each version."""

    def __init__(self, fleet: Fleet, estimates: Estimates, *, placement: Placement) -> None:
        self._fleet = fleet
        self._estimates = estimates
        self._placement = placement

    def plan(self, situation: Situation) -> list[Change]:
        """The changes worth making now, cheapest first."""
        present = [i for i in self._fleet if i.state in (State.UP, State.LOADING)]
        if not present or not situation.demands:
            return []
        bins = self._bins(situation, present)
        demands = [_total(b, situation.demands) for b in bins]
        shares = largest_remainder(demands, len(present), self._least(bins, present, situation))
        assignment = self._assign(present, bins, shares)
        return _Execution(self._fleet, self._estimates, bins, assignment, situation).changes()

    def _bins(self, situation: Situation, present: list[Instance]) -> list[Bin]:
        demands, count = situation.demands, len(present)
        if self._placement == "exclusive":
            return exclusive_bins(demands, count)
        if self._placement == "shared":
            return [tuple(sorted(demands))]
        return merged_bins(demands, count, self._may_share(situation, present))

    @staticmethod
    def _least(bins: list[Bin], present: list[Instance], situation: Situation) -> list[int]:
        """Number of instances that the KV of each bin's requests would fill."""
        capacity = sum(i.kv_capacity for i in present) / len(present)
        kv = dict.fromkeys((version for b in bins for version in b), 0.0)
        for instance in present:
            for version, cohort in instance.cohorts.items():
                if version in kv:
                    kv[version] += cohort.kv_tokens(instance.clock)
        return [ceil(sum(kv[v] / situation.full(v) for v in b) / capacity) for b in bins]

    def _may_share(self, situation: Situation, present: list[Instance]) -> Callable[[Bin, float], bool]:
        """The test whether several versions may share an instance.

        Cohorts decode in turn: k of them run at a k-th of the speed, and must still make their deadlines. So
        versions share only while together they need half of what is left of an instance by then, and while
        something waits for the instance this frees.
        """
        fits = min(i.spec.versions_that_fit for i in present)
        newest = max(situation.demands)
        is_wanted = situation.backlog.get(newest, 0) > 0

        def may_share(versions: Bin, quota: float) -> bool:
            cohorts = len(versions)
            in_time = all(cohorts * situation.longest_s.get(v, 0.0) <= situation.slack_s[v] for v in versions)
            is_small = cohorts <= fits and quota <= 0.5 / cohorts and newest not in versions
            return is_wanted and is_small and in_time

        return may_share

    @staticmethod
    def _assign(present: list[Instance], bins: list[Bin], shares: list[int]) -> dict[int, Bin]:
        """Give each bin its share of instances so that as much KV as possible stays where it is."""
        bin_of = {version: b for b in bins for version in b}
        kept: dict[int, dict[Bin, float]] = {}
        for instance in present:
            stays = kept[instance.id] = {}
            for version, cohort in instance.cohorts.items():
                if (b := bin_of.get(version)) is not None:
                    stays[b] = stays.get(b, 0.0) + cohort.kv_tokens(instance.clock)
            if instance.loading is not None and instance.loading in bin_of:
                stays[bin_of[instance.loading]] = _UNTOUCHABLE
        return assign(kept, dict(zip(bins, shares, strict=True)))


class _Execution:
    """A plan being made: the assignment, and the slots and KV that its moves have reserved so far."""

    def __init__(
        self,
        fleet: Fleet,
        estimates: Estimates,
        bins: list[Bin],
        assignment: dict[int, Bin],
        situation: Situation,
    ) -> None:
        self._fleet = fleet
        self._estimates = estimates
        self._assignment = assignment
        self._situation = situation
        self._keepers: dict[int, list[tuple[float, int]]] = {}
        self._extra: dict[int, tuple[int, float]] = {}
        self._wanted = {b: self._unserved(b) for b in bins}

    def changes(self) -> list[Change]:
        movers = [(self._foreign_tokens(i), i.id) for i in self._candidates()]
        made = (self._change(self._fleet.instances[key]) for _, key in sorted(movers))
        return [change for change in made if change is not None]

    def _candidates(self) -> Iterable[Instance]:
        for key, versions in self._assignment.items():
            instance = self._fleet.instances[key]
            settled = set(versions) == set(instance.cohorts)
            is_free = instance.state is State.UP and instance.loading is None and not instance.arriving
            if is_free and not settled:
                yield instance

    def _foreign_tokens(self, instance: Instance) -> float:
        versions = self._assignment[instance.id]
        cohorts = instance.cohorts.items()
        return sum(cohort.kv_tokens(instance.clock) for v, cohort in cohorts if v not in versions)

    def _change(self, instance: Instance) -> Change | None:
        versions = self._assignment[instance.id]
        foreign = [t for v, cohort in instance.cohorts.items() if v not in versions for t in cohort]
        missing = [v for v in versions if v not in instance.cohorts]
        if not missing and not foreign:
            return Change(instance, versions, [])
        if foreign and not self._pays(instance, versions, len(foreign)):
            return None
        moves = self._targets(instance, foreign)
        if moves is None:
            return None
        self._wanted[versions] -= instance.spec.slots
        return Change(instance, versions, moves)

    def _pays(self, instance: Instance, versions: Bin, num_moved: int) -> bool:
        """Whether a change gains more tokens than it costs.

        Gained: by requests that can start here, and by cohorts that no longer wait their turn. Lost: while
        requests are on their way.
        """
        e, s = self._estimates, self._situation
        steps = max(0.0, s.horizon_s - e.load_s) / e.step_s
        busy = [version for version, cohort in instance.cohorts.items() if len(cohort)]
        staying = sum(version in versions for version in busy)
        quicker = instance.num_running * (1.0 - staying / len(busy)) if staying else 0.0
        return (max(0, self._wanted[versions]) + quicker) * steps > num_moved * e.move_s / e.step_s

    def _targets(self, source: Instance, requests: list[Trajectory]) -> list[tuple[Trajectory, int]] | None:
        """A target for every request among instances that keep its version; None if one has no target."""
        moves: list[tuple[Trajectory, int]] = []
        for t in requests:
            tokens = source.kv_of(t)
            target = self._place(source, t.version, tokens)
            if target is None:
                for moved, key in moves:
                    self._reserve(key, -1, source.kv_of(moved))
                return None
            self._reserve(target.id, +1, tokens)
            moves.append((t, target.id))
        return moves

    def _place(self, source: Instance, version: int, tokens: float) -> Instance | None:
        heap = self._keepers_of(version)
        while heap:
            load, key = heap[0]
            instance = self._fleet.instances[key]
            if key == source.id or not self._fits(instance, tokens, self._situation.full(version)):
                heapq.heappop(heap)
            elif load < self._load(instance):
                heapq.heapreplace(heap, (self._load(instance), key))
            else:
                return instance
        return None

    def _keepers_of(self, version: int) -> list[tuple[float, int]]:
        if version not in self._keepers:
            keepers = [
                i for i in self._fleet.serving(version)
                if i.state is State.UP and version in self._assignment.get(i.id, ())
            ]  # fmt: skip
            self._keepers[version] = [(self._load(i), i.id) for i in keepers]
            heapq.heapify(self._keepers[version])
        return self._keepers[version]

    def _fits(self, instance: Instance, tokens: float, full: float) -> bool:
        requests, kv = self._extra.get(instance.id, (0, 0.0))
        has_slot = instance.num_running + requests < instance.spec.slots
        return has_slot and instance.kv_tokens + kv + tokens <= full * instance.kv_capacity

    def _reserve(self, key: int, sign: int, tokens: float) -> None:
        requests, kv = self._extra.get(key, (0, 0.0))
        self._extra[key] = (requests + sign, kv + sign * tokens)

    def _load(self, instance: Instance) -> float:
        """Share of an instance's KV in use with the plan's moves: moved requests are old and long."""
        _, kv = self._extra.get(instance.id, (0, 0.0))
        return (instance.kv_tokens + kv) / instance.kv_capacity

    def _unserved(self, versions: Bin) -> int:
        """Number of requests of these versions without a free slot on the instances that keep them."""
        wanted = sum(self._situation.backlog.get(v, 0) for v in versions)
        for key, b in self._assignment.items():
            instance = self._fleet.instances[key]
            if b == versions and any(v in instance.cohorts for v in b):
                wanted -= _free_slots(instance)
        return wanted


def _free_slots(instance: Instance) -> int:
    """Number of an instance's free slots for which it has KV: as much as its requests hold on average."""
    slots = instance.spec.slots - instance.num_running
    if instance.is_empty:
        return slots
    each = instance.kv_tokens / (instance.num_running + instance.num_waiting)
    return min(slots, max(0, int((_FULL * instance.kv_capacity - instance.kv_tokens) / max(1.0, each))))


def _total(versions: Bin, demands: Mapping[int, float]) -> float:
    return sum(demands[v] for v in versions)
