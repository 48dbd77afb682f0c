"""The ledger: every admitted trajectory, until it is trained on or ends in a counted outcome.

Owns groups and their members and the one place where "nothing lost" is accounted:

    admitted = committed + closed + in training + active        (in trajectories, at every moment)

Knows no instances beyond a number, no schedule and no clock.
"""

import heapq
from collections import Counter
from collections.abc import Iterator
from enum import IntEnum

from msgspec import Struct

from dora_rl.core.inputs import QueuedPrompt


class Phase(IntEnum):
    """Where a trajectory stands between admission and its end."""

    PENDING = 0
    """Pinned to a version, waiting for a place on an instance that serves it."""
    RUNNING = 1
    """Decoding on `instance`."""
    MOVING = 2
    """Migrating to `instance`."""
    WAITING = 3
    """Waiting for its environment's reply; its KV, if any, is kept on `instance`."""
    ENDED = 4
    """Generated to its last token, not scored yet."""
    SCORED = 5
    """Scored: finished for its group."""
    CLOSED = 6
    """Ended in a counted outcome; no step trains on it."""


GENERATING = (Phase.RUNNING, Phase.MOVING)
"""Phases of a trajectory in which an instance may report on it."""


class Trajectory(Struct, gc=False):
    """One member of a group as control sees it: phase, place and counts, no tokens."""

    id: int
    group: int
    member: int
    version: int
    prompt_tokens: int
    phase: int = Phase.PENDING
    instance: int | None = None
    tokens: int = 0
    """Number of tokens after the prompt that are known to exist."""
    offset: float = 0.0
    """Decode clock of `instance` minus tokens: progress is clock - offset while running."""
    attempt: int = 0
    failures: int = 0
    segments: tuple[tuple[int, int], ...] = ()
    """(version, first token) of each stretch of one version: one stretch, except under `partial`."""
    truncated: bool = False
    reward: float | None = None
    waits_since: float = 0.0
    """When its environment was given the turn it has now."""
    is_parked: bool = False
    """Whether its KV is in host memory until its environment replies."""
    is_cut: bool = False
    """Whether its episode was told to end: what is heard of it next is its end."""

    @property
    def is_mixed(self) -> bool:
        """Whether more than one version generated this trajectory."""
        return len(self.segments) > 1


class Group(Struct):
    """One prompt and its members, pinned to one version."""

    id: int
    version: int
    prompt: QueuedPrompt
    members: list[Trajectory]
    unscored: int
    """Members that are neither scored nor closed."""
    is_finished: bool = False
    is_evaluation: bool = False
    question: int | None = None
    """The number of the role's turn that it is; None for groups of the policy."""

    def member(self, trajectory: int) -> Trajectory:
        return self.members[trajectory % len(self.members)]

    def left(self) -> list[Trajectory]:
        """The members that did not end in a counted outcome."""
        return [t for t in self.members if t.phase != Phase.CLOSED]

    def has_variance(self) -> bool:
        """Whether the members left have different rewards."""
        rewards = {t.reward for t in self.left() if t.reward is not None}
        return len(rewards) > 1


class Ledger:
    """Groups by id, the finished ones in order, and the counts that must add up."""

    def __init__(self, *, group_size: int) -> None:
        self.group_size = group_size
        self.groups: dict[int, Group] = {}
        self.training: dict[int, Group] = {}
        self.evaluating: dict[int, Group] = {}
        self.roles: dict[int, Group] = {}
        """Turns of roles that are awaited: pinned to a frozen version, and counted in no law."""
        self.num_admitted = 0
        self.num_committed = 0
        self.outcomes: Counter[str] = Counter()
        self.discarded_tokens = 0
        """Tokens of the trajectories that ended in a counted outcome."""
        self._next_group = 0
        self._finished: list[tuple[int, int]] = []

    # --- looking up ---

    def trajectory(self, trajectory: int) -> Trajectory | None:
        """A trajectory of an active group or an aside by its id; None if it is not one (any more)."""
        group = self.group_of(trajectory)
        return group.member(trajectory) if group is not None else None

    def group_of(self, trajectory: int) -> Group | None:
        """The active group or evaluation that a trajectory belongs to; None if there is none (any more)."""
        key = trajectory // self.group_size
        group = self.groups.get(key)
        return group if group is not None else self.evaluating.get(key) or self.roles.get(key)

    def finished(self) -> Iterator[Group]:
        """Finished groups, oldest version first, then in the order they were admitted."""
        return (self.groups[group] for _, group in sorted(self._finished) if self._is_open(group))

    # --- a group's life ---

    def admit(self, prompt: QueuedPrompt, version: int) -> Group:
        """Create an active group of `group_size` members, pinned to `version`."""
        group = self._new(prompt, version, self.group_size)
        self.groups[group.id] = group
        self.num_admitted += self.group_size
        return group

    def evaluate(self, prompt: QueuedPrompt, version: int) -> Group:
        """Create an evaluation: one trajectory, pinned to `version`, counted in no law."""
        group = self._new(prompt, version, 1)
        group.is_evaluation = True
        self.evaluating[group.id] = group
        return group

    def ask(self, prompt: QueuedPrompt, version: int, question: int) -> Group:
        """Create the turn of a role: one trajectory, pinned to `version`, counted in no law."""
        group = self._new(prompt, version, 1)
        group.question = question
        self.roles[group.id] = group
        return group

    def finish(self, group: Group) -> None:
        """Mark a group finished: all members left are scored, and it passed the filters."""
        group.is_finished = True
        heapq.heappush(self._finished, (group.version, group.id))

    def close(self, group: Group, trajectory: Trajectory, outcome: str) -> None:
        """Close one member of a group and count its outcome (of an evaluation, none is counted)."""
        trajectory.phase = Phase.CLOSED
        if not group.is_evaluation:
            self.outcomes[outcome] += 1
            self.discarded_tokens += trajectory.tokens

    def forget(self, group: Group) -> None:
        """Remove a group that will not be trained on, or an evaluation or a role's turn that ended."""
        self.groups.pop(group.id, None)
        self.evaluating.pop(group.id, None)
        self.roles.pop(group.id, None)

    def take(self, count: int) -> list[Group]:
        """Move the `count` oldest finished groups into training, and return them."""
        batch: list[Group] = []
        while len(batch) < count:
            _, group = heapq.heappop(self._finished)
            if self._is_open(group):
                batch.append(self.groups[group])
        self.train(batch)
        return batch

    def train(self, batch: list[Group]) -> None:
        """Move exactly these finished groups into training."""
        for group in batch:
            self.training[group.id] = self.groups.pop(group.id)

    def commit(self) -> None:
        """Count the trajectories in training as committed: their step is published."""
        self.num_committed += sum(len(group.left()) for group in self.training.values())
        self.training.clear()

    def give_back(self) -> list[Group]:
        """Make the groups of a lost train step active and finished again, and return them."""
        returned = list(self.training.values())
        queued = set(self._finished)
        for group in returned:
            self.groups[group.id] = group
            if (entry := (group.version, group.id)) not in queued:
                heapq.heappush(self._finished, entry)
        self.training.clear()
        return returned

    # --- accounting ---

    @property
    def num_active(self) -> int:
        """Number of trajectories of active groups that did not end in an outcome."""
        return sum(len(group.left()) for group in self.groups.values())

    @property
    def num_lost(self) -> int:
        """Number of admitted trajectories that are accounted for nowhere: always zero."""
        in_training = sum(len(group.left()) for group in self.training.values())
        accounted = self.num_committed + sum(self.outcomes.values()) + in_training + self.num_active
        return self.num_admitted - accounted

    def check(self) -> None:
        assert self.num_lost == 0, f"{self.num_lost} trajectories are unaccounted for"
        for group in self.groups.values():
            unscored = sum(t.phase < Phase.SCORED for t in group.members)
            assert group.unscored == unscored, f"group {group.id}: {group.unscored} != {unscored}"
            assert group.is_finished == (unscored == 0), f"group {group.id} is finished too early or late"
            assert all(t.segments[0][0] == group.version for t in group.members), f"group {group.id} is mixed"

    # --- inside ---

    def _is_open(self, group: int) -> bool:
        """Whether a group is still active: entries of others stay in the heap until they come up."""
        return group in self.groups

    def _new(self, prompt: QueuedPrompt, version: int, size: int) -> Group:
        group, self._next_group = self._next_group, self._next_group + 1
        first, segments = group * self.group_size, ((version, 0),)
        members = [
            Trajectory(
                id=first + member,
                group=group,
                member=member,
                version=version,
                prompt_tokens=prompt.tokens,
                segments=segments,
            )
            for member in range(size)
        ]
        return Group(id=group, version=version, prompt=prompt, members=members, unscored=size)
