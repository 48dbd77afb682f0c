"""Environments of episodes: which are reset ahead of admission, and which a train step waits for too long.

Owns the count of environments that are open, and the evaluations that wait for one. A prompt has no version
before its members' environments are reset, so a slow reset ages nobody, and what may be open at once is a
condition of admission. Knows nothing of what an environment is; in a run without them it does nothing.
"""

from collections import deque
from collections.abc import Iterable

from dora_rl.control.ledger import Group, Phase, Trajectory
from dora_rl.control.parts import ControlParts
from dora_rl.core.decisions import Cut, Open, Reopen
from dora_rl.core.errors import ConfigError


class Environments:
    """Has environments reset while there is room for them, and ends episodes that hold up the trainer."""

    def __init__(self, parts: ControlParts) -> None:
        self._p = parts
        self.is_episodic = parts.episode is not None
        self._most = parts.episode.most_open if parts.episode is not None else None
        self._most_ahead = (parts.episode.ahead if parts.episode is not None else None) or parts.batch.groups
        self._evaluations: deque[Trajectory] = deque()
        self._opening: dict[tuple[int, int], deque[Trajectory]] = {}
        """Evaluations whose environment is being reset, by (epoch, row); the same may be asked for twice."""
        self.num_open = 0
        """Environments that are reset, are being reset, or take part in an episode."""
        if self._most is not None and self._most < parts.batch.group_size:
            raise ConfigError(
                f"{self._most} episodes may be open at a time, fewer than one group, batch.group_size = "
                f"{parts.batch.group_size}: none could start",
                hint=f"let episode.max_open, and episode.processes times episode.per_process, be "
                f"{parts.batch.group_size} or more",
            )

    # --- opening ---

    def open(self) -> None:
        """Have environments reset, those of evaluations first, as many as may be open and will be needed."""
        p = self._p
        while self._evaluations and self._has_room(1):
            t = self._evaluations.popleft()
            prompt = p.ledger.evaluating[t.group].prompt
            self._opening.setdefault((prompt.epoch, prompt.row), deque()).append(t)
            self.num_open += 1
            p.emit(Open(epoch=prompt.epoch, row=prompt.row, is_evaluation=True))
        while self.is_episodic and p.prompts.waiting and self._wants_another():
            prompt = p.prompts.open()
            self.num_open += p.batch.group_size
            p.emit(Open(epoch=prompt.epoch, row=prompt.row))

    def _wants_another(self) -> bool:
        p, num_ahead = self._p, self._p.prompts.num_ahead
        # More than the run can still train on would hold environments for nothing, for ever.
        num_left = (p.steps - p.window.taken) * p.batch.groups - p.window.num_active
        return num_ahead < min(self._most_ahead, num_left) and self._has_room(p.batch.group_size)

    def _has_room(self, count: int) -> bool:
        return self._most is None or self.num_open + count <= self._most

    def start_failed(self, epoch: int, row: int) -> None:
        """The environments of a queued prompt could not be reset: drop it."""
        if self._p.prompts.drop(epoch, row):
            self.num_open -= self._p.batch.group_size
            self._p.meters.failed_openings += 1

    # --- evaluations ---

    def evaluate(self, members: Iterable[Trajectory]) -> None:
        """Let evaluations wait for an environment each."""
        self._evaluations.extend(members)

    def evaluation_heard_of(self, epoch: int, row: int) -> Trajectory | None:
        """The evaluation whose environment is reset now, or could not be; None if none is being opened."""
        opening = self._opening.get((epoch, row))
        if opening is None:
            return None
        t = opening.popleft()
        if not opening:
            del self._opening[epoch, row]
        return t

    # --- episodes ---

    def reopen(self, t: Trajectory, prompt_tokens: int) -> None:
        """Begin a trajectory's next attempt in a new environment; it waits until that asks for a turn."""
        t.attempt, t.tokens, t.prompt_tokens = t.attempt + 1, 0, prompt_tokens
        t.phase, t.waits_since = Phase.WAITING, self._p.now
        self._p.emit(Reopen(trajectory=t.id, attempt=t.attempt))

    def ended(self, t: Trajectory) -> None:
        """The episode of a trajectory is about to end, in whatever way: its environment is open no longer."""
        self.num_open -= self.is_episodic and t.phase < Phase.ENDED

    def cut_overdue(self, idle_since: float | None) -> None:
        """End the episodes for which alone an idle trainer has waited longer than the grace."""
        if idle_since is None or not self.is_episodic:
            return
        groups, num_awaited = self._awaited()
        members = [t for group in groups for t in group.members]
        if any(t.phase < Phase.WAITING for t in members):
            return
        since = max([idle_since, *(t.waits_since for t in members if t.phase == Phase.WAITING)])
        if self._p.now - since <= self._p.control.environment_grace_s:
            return
        for group in groups[:num_awaited]:
            for t in group.members:
                if t.phase == Phase.WAITING and not t.is_cut:
                    t.is_cut = True
                    self._p.meters.cut += 1
                    self._p.emit(Cut(trajectory=t.id, reason="deadline"))

    def _awaited(self) -> tuple[list[Group], int]:
        """The unfinished groups that the next batch may wait for, oldest first, and how many it needs."""
        version, num_awaited = self._p.window.awaited()
        groups = (group for group in self._p.ledger.groups.values() if not group.is_finished)
        return sorted(
            (g for g in groups if g.version <= version), key=lambda g: (g.version, g.id)
        ), num_awaited

    def check(self) -> None:
        """Assert that the environments counted as open are those of prompts ahead and of live episodes."""
        if not self.is_episodic:
            return
        p = self._p
        groups = [*p.ledger.groups.values(), *p.ledger.evaluating.values()]
        unended = sum(t.phase < Phase.ENDED for group in groups for t in group.members)
        is_open = p.prompts.num_ahead * p.batch.group_size + unended - len(self._evaluations)
        assert self.num_open == is_open, f"{self.num_open} environments are open, not {is_open}"
        assert self._most is None or is_open <= self._most, (
            f"{is_open} environments where {self._most} may be"
        )
