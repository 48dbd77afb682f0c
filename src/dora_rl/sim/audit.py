"""The audit: laws 1 to 4 checked from the outside.

Sees only inputs and decisions, never the control plane's own books, so a mistake there cannot hide
itself. Live runs can be audited from their event log in the same way.
"""

from collections import Counter

from dora_rl.core import decisions as do
from dora_rl.core.decisions import Decision
from dora_rl.core.inputs import Input, Published, StepLost


class Audit:
    """Follows every admitted group and trajectory from its start to its end."""

    def __init__(self, *, batch_groups: int, group_size: int, max_staleness: int) -> None:
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

    # --- watching ---

    def watch(self, event: Input, decisions: list[Decision]) -> None:
        self.saw_input(event)
        for decision in decisions:
            self.saw_decision(decision)

    def saw_input(self, event: Input) -> None:
        if isinstance(event, Published):
            self._commit(event.version)
        elif isinstance(event, StepLost) and self._training:
            self._training = ()
            self._batches_taken -= 1

    def saw_decision(self, decision: Decision) -> None:
        kind = type(decision)
        if kind is do.Start:
            self._started(decision)  # type: ignore[arg-type]
        elif kind is do.Admit:
            self.version_of[decision.group] = decision.version  # type: ignore[attr-defined]
        elif kind is do.Take:
            self._took(decision)  # type: ignore[arg-type]
        elif kind is do.Close:
            self._closed.update(decision.members)  # type: ignore[attr-defined]

    def _started(self, start: do.Start) -> None:
        if not start.evaluation and self.version_of.get(start.group) != start.version:
            self.versions_used.setdefault(start.trajectory, set()).add(start.version)

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
            if true > self.max_staleness:
                self.violations.append(f"group {group} has staleness {true} > {self.max_staleness}")
        self._training = take.groups
        self._batches_taken += 1

    def _commit(self, version: int) -> None:
        if version != self.steps + 1:
            self.violations.append(f"version {version} was published after {self.steps}")
        self.steps = version
        self._committed_groups.update(self._training)
        self._training = ()

    # --- the verdict ---

    def duplicated(self) -> int:
        """Trajectories in more than one committed batch, or in a batch and an outcome."""
        twice = sum(count - 1 for count in self._committed_groups.values())
        closed_twice = sum(count - 1 for count in self._closed.values())
        return twice * self._group_size + closed_twice

    def lost(self, active: set[int]) -> int:
        """Admitted trajectories that ended nowhere, given the groups control still holds."""
        lost = 0
        for group in self.version_of:
            if group in self._committed_groups or group in active:
                continue
            first = group * self._group_size
            lost += sum(member not in self._closed for member in range(first, first + self._group_size))
        return lost

    def mixed(self) -> int:
        """Trajectories started under another version than their group's."""
        return len(self.versions_used)
