"""The audit: laws 1 to 4 checked from the outside.

Sees only inputs and decisions, never the control plane's own state, so a mistake there cannot hide
itself. Live runs can be audited from their event log in the same way.
"""

from collections import Counter
from collections.abc import Callable
from typing import Any

from dora_rl.core import decisions as do
from dora_rl.core.decisions import Decision
from dora_rl.core.inputs import Input, Published, StepLost
from dora_rl.core.record import Record


class Audit:
    """Follows every admitted group and trajectory from start to end, and records broken laws."""

    def __init__(self, *, batch_groups: int, group_size: int, max_staleness: int | None) -> None:
        """`max_staleness` is None where a schedule promises no bound on single groups."""
        self._batch_groups = batch_groups
        self._group_size = group_size
        self.max_staleness = max_staleness
        self.version_of: dict[int, int] = {}
        self.versions_used: dict[int, set[int]] = {}
        self._training: tuple[int, ...] = ()
        self._trained_at = 0
        self._batches_taken = 0
        self._closed: Counter[int] = Counter()
        self._committed_groups: Counter[int] = Counter()
        self.num_committed = 0
        self.worst_staleness = 0
        self.violations: list[str] = []
        self.steps = 0
        self._follow: dict[type[Record], Callable[[Any], None]] = {
            Published: self._commit,
            StepLost: self._lose,
            do.Admit: self._admitted,
            do.Start: self._started,
            do.Take: self._took,
            do.Close: self._ended,
        }

    # --- watching ---

    def watch(self, event: Input, decisions: list[Decision]) -> None:
        follow = self._follow
        if type(event) in follow:
            follow[type(event)](event)
        for decision in decisions:
            if type(decision) in follow:
                follow[type(decision)](decision)

    def _admitted(self, admit: do.Admit) -> None:
        self.version_of[admit.group] = admit.version

    def _started(self, start: do.Start) -> None:
        if self.version_of.get(start.group) != start.version and not start.is_aside:
            self.versions_used.setdefault(start.trajectory, set()).add(start.version)

    def _ended(self, close: do.Close) -> None:
        self._closed.update(close.members)

    def _took(self, take: do.Take) -> None:
        if take.batch != self._batches_taken:
            self.violations.append(f"batch {take.batch} came out of turn")
        if len(take.groups) != self._batch_groups or len(set(take.groups)) != self._batch_groups:
            self.violations.append(f"batch {take.batch} holds {len(set(take.groups))} groups")
        for group, staleness in zip(take.groups, take.staleness, strict=True):
            true = take.batch - self.version_of[group]
            self.worst_staleness = max(self.worst_staleness, true)
            if true != staleness:
                self.violations.append(f"group {group}: staleness {true} was called {staleness}")
            if self.max_staleness is not None and true > self.max_staleness:
                self.violations.append(f"group {group} has staleness {true} > {self.max_staleness}")
        self._training = take.groups
        self._batches_taken += 1

    def _commit(self, published: Published) -> None:
        if published.version != self.steps + 1:
            self.violations.append(f"version {published.version} was published after {self.steps}")
        self.steps = published.version
        self._committed_groups.update(self._training)
        self._training = ()

    def _lose(self, lost: StepLost) -> None:
        if self._training:
            self._training = ()
            self._batches_taken -= 1

    # --- the verdict ---

    def duplicated(self) -> int:
        """Number of trajectories in more than one committed batch, or in two counted outcomes."""
        twice = sum(count - 1 for count in self._committed_groups.values())
        closed_twice = sum(count - 1 for count in self._closed.values())
        return twice * self._group_size + closed_twice

    def lost(self, active: set[int]) -> int:
        """Number of admitted trajectories that ended nowhere; `active` are the groups control still holds."""
        lost = 0
        for group in self.version_of:
            if group in self._committed_groups or group in active:
                continue
            first = group * self._group_size
            lost += sum(member not in self._closed for member in range(first, first + self._group_size))
        return lost

    def mixed(self) -> int:
        """Number of trajectories started under another version than their group's."""
        return len(self.versions_used)
