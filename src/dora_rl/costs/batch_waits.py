"""What the trainer really waits for: generation, an environment or a reward.

Control says that the trainer is starved, or that old groups are due. Whoever wants to act has to know what
those groups lack, which follows from how far their members are. Watches inputs and decisions.
"""

from collections.abc import Callable
from enum import IntEnum
from typing import Any

from msgspec import Struct, field

from dora_rl.core import decisions as do
from dora_rl.core import inputs as told
from dora_rl.core.record import Record


class Lack(IntEnum):
    """What a member lacks, and a group whose members lack it least advanced first."""

    GENERATION = 0
    ENVIRONMENT = 1
    REWARD = 2
    NOTHING = 3


class _WaitingGroup(Struct, gc=False):
    version: int
    num_lacking: list[int]
    """Number of members by what they lack."""
    started: dict[int, Lack] = field(default_factory=dict)
    """What each member that has started lacks."""

    @property
    def lack(self) -> Lack:
        generation, environment, reward, _ = self.num_lacking
        if generation:
            return Lack.GENERATION
        if environment:
            return Lack.ENVIRONMENT
        return Lack.REWARD if reward else Lack.NOTHING


class BatchWaits:
    """Counts the active groups by version and by what they lack."""

    def __init__(self, *, batch_groups: int, group_size: int) -> None:
        self._batch_groups = batch_groups
        self._group_size = group_size
        self._active: dict[int, _WaitingGroup] = {}
        self._training: dict[int, _WaitingGroup] = {}
        self._group_of: dict[int, int] = {}
        self._num_groups: dict[int, list[int]] = {}
        """Number of active groups by what they lack, for each version."""
        self._num_in_all = [0] * len(Lack)
        self._handlers: dict[type[Record], Callable[[Any], None]] = {
            do.Admit: self._admitted,
            do.Start: self._started,
            told.Ended: lambda e: self._advance(e.trajectory, Lack.REWARD),
            told.TurnEnded: lambda e: self._advance(e.trajectory, Lack.ENVIRONMENT),
            told.EnvironmentReplied: lambda e: self._advance(e.trajectory, Lack.GENERATION),
            told.EnvironmentFailed: lambda e: self._advance(e.trajectory, Lack.GENERATION),
            do.Reopen: lambda d: self._advance(d.trajectory, Lack.ENVIRONMENT),
            told.EpisodeEnded: lambda e: self._advance(e.trajectory, Lack.REWARD),
            told.Scored: lambda e: self._advance(e.trajectory, Lack.NOTHING),
            do.Close: self._closed,
            do.Take: self._took,
            told.Published: self._published,
            told.StepLost: self._lost,
        }

    def follow(self, record: Record) -> None:
        """Take in one input or decision."""
        handler = self._handlers.get(type(record))
        if handler is not None:
            handler(record)

    def lack(self, reason: str) -> Lack:
        """What the batch lacks while the trainer waits for `reason`, which control gave.

        For the window: what the oldest unfinished groups lack. Starved: what would complete the batch if
        nothing but that, and what comes behind it, still came.
        """
        if reason == "window":
            unfinished = [v for v, counts in self._num_groups.items() if any(counts[: Lack.NOTHING])]
            counts = self._num_groups[min(unfinished)] if unfinished else [1]
            return next(lack for lack, num_groups in zip(Lack, counts, strict=False) if num_groups)
        num_missing = self._batch_groups - self._num_in_all[Lack.NOTHING]
        for lack in (Lack.REWARD, Lack.ENVIRONMENT):
            num_missing -= self._num_in_all[lack]
            if num_missing <= 0:
                return lack
        return Lack.GENERATION

    # --- groups ---

    def _admitted(self, admit: do.Admit) -> None:
        group = _WaitingGroup(version=admit.version, num_lacking=[self._group_size, 0, 0, 0])
        self._active[admit.group] = group
        self._count(group, group.lack, +1)

    def _took(self, take: do.Take) -> None:
        for number in take.groups:
            group = self._training[number] = self._active.pop(number)
            self._count(group, group.lack, -1)

    def _published(self, event: told.Published) -> None:
        for group in self._training.values():
            for trajectory in group.started:
                del self._group_of[trajectory]
        self._training = {}

    def _lost(self, event: told.StepLost) -> None:
        for group in self._training.values():
            self._count(group, group.lack, +1)
        self._active |= self._training
        self._training = {}

    def _count(self, group: _WaitingGroup, lack: Lack, change: int) -> None:
        counts = self._num_groups.setdefault(group.version, [0] * len(Lack))
        counts[lack] += change
        self._num_in_all[lack] += change
        if not any(counts):
            del self._num_groups[group.version]

    # --- members ---

    def _started(self, start: do.Start) -> None:
        if not start.is_aside:
            self._group_of[start.trajectory] = start.group
            self._advance(start.trajectory, Lack.GENERATION)

    def _advance(self, trajectory: int, lack: Lack) -> None:
        group = self._active.get(self._group_of.get(trajectory, -1))
        if group is not None:
            was = group.lack
            group.num_lacking[group.started.get(trajectory, Lack.GENERATION)] -= 1
            group.num_lacking[lack] += 1
            group.started[trajectory] = lack
            self._recount(group, was)

    def _closed(self, close: do.Close) -> None:
        if (group := self._active.get(close.group)) is None:
            return
        was = group.lack
        for trajectory in close.members:
            group.num_lacking[group.started.pop(trajectory, Lack.GENERATION)] -= 1
            self._group_of.pop(trajectory, None)
        if any(group.num_lacking):
            self._recount(group, was)
        else:
            del self._active[close.group]
            self._count(group, was, -1)

    def _recount(self, group: _WaitingGroup, was: Lack) -> None:
        if (lack := group.lack) is not was:
            self._count(group, was, -1)
            self._count(group, lack, +1)
