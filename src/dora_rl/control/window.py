"""The window: may one more group start, may a batch be taken?

Owns the only copy of the staleness bound. Knows counts of groups by version; no trajectories,
instances or clocks. The rule and its proof are in `docs/bound.md`:

    feasible(m):  A(w) <= max(0, w + S - m + 1) * B   for every version w

where `m` batches have been taken and `A(w)` groups of version <= w are active. Every admission and
every taking keeps it, so each group reaches a batch numbered at most `w + S`. With `bounds_each` off it is
kept for the newest version alone: the count of groups is bounded then, and no single group.
"""

from collections.abc import Iterable, Iterator
from enum import Enum


class Verdict(Enum):
    """The answer to an idle trainer that asks for a batch: ready, or what it waits for."""

    READY = "ready"
    """The next batch may be taken."""
    STARVED = "starved"
    """Fewer than B groups are finished."""
    WINDOW = "window"
    """B groups are finished, but taking them would make an unfinished group miss its deadline."""
    PROMPTS = "prompts"
    """Starved for want of prompts: none is queued, and too few groups are active to fill a batch."""


class Window:
    """Counts of active and unfinished groups by version, and the two rules over them."""

    def __init__(
        self, *, batch_groups: int, max_staleness: int, spare: int = 0, bounds_each: bool = True
    ) -> None:
        self.batch_groups = batch_groups
        self.max_staleness = max_staleness
        self.spare = spare
        """Redundant groups that may be active beyond what deadlines allow, until a batch is taken."""
        self.bounds_each = bounds_each
        """Whether each group has a deadline, or only the number of all that started is bounded."""
        self.newest = 0
        self.taken = 0
        self.num_active = 0
        self.num_finished = 0
        self._active: dict[int, int] = {}
        self._unfinished: dict[int, int] = {}

    # --- asking ---

    def room(self, version: int) -> int:
        """How many groups of `version` could start now without endangering any deadline."""
        if not self.bounds_each:
            version = self.newest
        active = self.active_up_to(version)
        room = self._most(version) - active
        for w in range(version + 1, self.newest + 1):
            active += self._active.get(w, 0)
            room = min(room, self._most(w) - active)
        return room

    def verdict(self) -> Verdict:
        """Whether the next batch may be taken, and if not, what it waits for."""
        if self.num_finished < self.batch_groups:
            return Verdict.STARVED
        if not self.bounds_each:
            return Verdict.READY
        return Verdict.READY if self._overdue() is None else Verdict.WINDOW

    def awaited(self) -> tuple[int, int]:
        """What the next batch waits for: so many unfinished groups, of any version up to one."""
        if self.num_finished < self.batch_groups:
            return self.newest, self.batch_groups - self.num_finished
        return (self._overdue() if self.bounds_each else None) or (self.newest, 0)

    def _overdue(self) -> tuple[int, int] | None:
        """The oldest version up to which too many groups are unfinished, and by how many; None if none."""
        unfinished = 0
        for w in sorted(self._unfinished):
            unfinished += self._unfinished[w]
            if unfinished > self._slack(w, 0) + self.spare:
                return w, unfinished - self._slack(w, 0) - self.spare
        return None

    def overfull(self) -> int | None:
        """The oldest version up to which redundant groups must end before a batch is taken, if any."""
        active = unfinished = 0
        for w in sorted(self._active):
            active += self._active[w]
            unfinished += self._unfinished.get(w, 0)
            if active > self._slack(w, 1) or unfinished > self._slack(w, 0):
                return w
        return None

    def forced(self, version: int, *, extra: int = 0) -> int:
        """Groups of version <= `version` that the next batch must hold, were `extra` more of them active."""
        if not self.bounds_each:
            return 0
        return max(0, self.active_up_to(version) + extra - self._slack(version, 0))

    def active_up_to(self, version: int) -> int:
        """Number of active groups of version <= `version`: A(w)."""
        return sum(count for w, count in self._active.items() if w <= version)

    def finished_up_to(self, version: int) -> int:
        """Number of finished groups of version <= `version`."""
        unfinished = sum(count for w, count in self._unfinished.items() if w <= version)
        return self.active_up_to(version) - unfinished

    def active(self, version: int) -> int:
        """Number of active groups of exactly `version`."""
        return self._active.get(version, 0)

    def unfinished(self, version: int) -> int:
        """Number of unfinished groups of exactly `version`."""
        return self._unfinished.get(version, 0)

    @property
    def num_unfinished(self) -> int:
        return self.num_active - self.num_finished

    @property
    def oldest_allowed(self) -> int:
        """The oldest version the next batch may hold, m - S."""
        return self.taken - self.max_staleness

    def live(self) -> Iterator[int]:
        """Versions with active groups, oldest first."""
        return iter(sorted(self._active))

    # --- telling ---

    def admit(self, version: int) -> None:
        """Count a group that starts under `version`; the rule must allow it."""
        assert self.room(version) > 0, f"no room for version {version}: {self}"
        self._add(version, +1, unfinished=+1)

    def finish(self, version: int) -> None:
        """Count a group of `version` as finished."""
        self._count(self._unfinished, version, -1)
        self.num_finished += 1

    def close(self, version: int, *, finished: bool) -> None:
        """Remove a group of `version` that ended in a counted outcome."""
        self._add(version, -1, unfinished=0 if finished else -1)
        self.num_finished -= finished

    def take(self, versions: Iterable[int]) -> None:
        """Count a batch as taken; `versions` are those of its groups."""
        for version in versions:
            assert version >= self.oldest_allowed or not self.bounds_each, f"{version} is too old: {self}"
            self._add(version, -1, unfinished=0)
            self.num_finished -= 1
        self.taken += 1
        self.check()

    def give_back(self, versions: Iterable[int]) -> None:
        """Take back the last batch, whose step was lost: its groups are active and finished again."""
        self.taken -= 1
        for version in versions:
            self._add(version, +1, unfinished=0)
            self.num_finished += 1
        self.check()

    def publish(self, version: int) -> None:
        """Make `version` the newest: the step on the last batch taken ended."""
        assert version == self.newest + 1 <= self.taken, f"publishing {version}: {self}"
        self.newest = version

    def loosen(self, max_staleness: int) -> None:
        """Raise the staleness bound, which is always safe."""
        assert max_staleness >= self.max_staleness
        self.max_staleness = max_staleness

    def tighten(self, max_staleness: int) -> bool:
        """Lower the staleness bound if every active group can still make its deadline; False if not."""
        before, self.max_staleness = self.max_staleness, max_staleness
        if not self._feasible():
            self.max_staleness = before
        return self.max_staleness == max_staleness

    def check(self) -> None:
        """Assert that every active group can still make its deadline, and that the counts agree."""
        assert self._feasible(), f"a deadline cannot be met: {self}"
        assert self.taken - 1 <= self.newest <= self.taken, f"versions out of step: {self}"
        assert self.num_active == sum(self._active.values())
        assert self.num_unfinished == sum(self._unfinished.values())

    # --- inside ---

    def _feasible(self) -> bool:
        versions = self._active if self.bounds_each else (self.newest,)
        return all(self.active_up_to(w) <= self._most(w) for w in versions)

    def _most(self, version: int) -> int:
        """Most groups of version <= `version` that may be active."""
        slack = self._slack(version, 1)
        return slack + self.spare if slack else 0

    def _slack(self, version: int, ahead: int) -> int:
        """Number of groups that fit into the batches left for `version`: all (1), or all but the next (0)."""
        return max(0, version + self.max_staleness - self.taken + ahead) * self.batch_groups

    def _add(self, version: int, active: int, *, unfinished: int) -> None:
        self._count(self._active, version, active)
        if unfinished:
            self._count(self._unfinished, version, unfinished)
        self.num_active += active

    @staticmethod
    def _count(counts: dict[int, int], version: int, change: int) -> None:
        value = counts.get(version, 0) + change
        assert value >= 0, f"version {version} counted below zero"
        if value:
            counts[version] = value
        else:
            counts.pop(version, None)

    def __repr__(self) -> str:
        return (
            f"Window(m={self.taken}, n={self.newest}, S={self.max_staleness}, B={self.batch_groups}, "
            f"active={self._active}, unfinished={self._unfinished})"
        )
