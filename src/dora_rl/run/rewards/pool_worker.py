"""A reward worker as the pool sees it: may it get more requests, and whose time is up? Waits for nothing."""

import math

from msgspec import Struct

from dora_rl.core.recipe.data import ScoringConfig
from dora_rl.envs.scoring.reward_messages import Began, ScoreRequest
from dora_rl.launch.protocol import Handle

_GRACE_S = 2.0
"""Seconds an asynchronous call gets beyond its limit, which its own process enforces."""
_QUICK_S = 0.02
"""Seconds up to which a call is over before its answer is read: the next request should lie there already."""
_REST_S = 1.0
"""Seconds after which the rest of a message that came in part is no longer waited for beyond a limit."""
_BEGIN_LIMIT_S = 10.0
"""Seconds within which an idle process must begin with what it was given."""


class ScoreTask(Struct, kw_only=True, eq=False):
    """A score request on its way, and how it fared so far."""

    request: ScoreRequest
    num_deaths: int = 0
    """How many processes died while they worked on this request."""
    call: Began | None = None
    """The reward function that is being called; None before the first."""
    called_at: float = 0.0

    def due_at(self, time_limit_s: float) -> float:
        """When the call in progress has used up its time limit."""
        if self.call is None:
            return math.inf
        return self.called_at + time_limit_s + (_GRACE_S if self.call.is_async else 0.0)


class PoolWorker:
    """A reward worker and the requests it was given, from its start to its end."""

    def __init__(self, config: ScoringConfig, handle: Handle, now: float) -> None:
        self._config = config
        self._heard_at = self._moved_at = now
        self.handle = handle
        self.descriptor = handle.fileno()
        """The descriptor registered with the selector, kept because the handle has none after its end."""
        self.capacity = 0
        self._is_concurrent = False
        self.tasks: dict[int, ScoreTask] = {}

    @property
    def is_ready(self) -> bool:
        return self.capacity > 0

    @property
    def room(self) -> int:
        return self.capacity - len(self.tasks)

    @property
    def due_at(self) -> float:
        """When this worker will have been silent for too long."""
        limit_s = self._config.time_limit_s
        if not self.is_ready or self._has_not_begun:
            due_at = self._heard_at + self.silence_limit_s
        else:
            due_at = min((task.due_at(limit_s) for task in self.tasks.values()), default=math.inf)
        # What is on its way may be the answer; but not for ever.
        return max(due_at, self._moved_at + _REST_S) if self.handle.is_mid_message else due_at

    @property
    def silence_limit_s(self) -> float:
        """Seconds this worker may take before it says that it is ready, or that it has begun."""
        return _BEGIN_LIMIT_S if self.is_ready else self._config.start_limit_s

    @property
    def _has_not_begun(self) -> bool:
        return bool(self.tasks) and all(task.call is None for task in self.tasks.values())

    def heard(self, now: float) -> None:
        """Note that the worker gave a sign of life."""
        self._heard_at = now

    def moved(self, now: float) -> None:
        """Note that something came from the worker, if only a part of a message."""
        self._moved_at = now

    def open(self, *, is_concurrent: bool) -> None:
        """Accept requests from now on: the reward functions are imported."""
        self._is_concurrent = is_concurrent
        self.capacity = self._config.max_concurrent if is_concurrent else 1

    def begin(self, call: Began, now: float) -> None:
        task = self.tasks[call.request]
        task.call, task.called_at = call, now

    def end(self, request: int, now: float) -> None:
        """Take an answered request off; a quick worker gets more in advance, a slow one fewer."""
        task = self.tasks.pop(request)
        if not self._is_concurrent:
            is_quick = now - task.called_at <= _QUICK_S
            wanted = 2 * self.capacity if is_quick else self.capacity // 2
            self.capacity = max(1, min(wanted, self._config.max_concurrent))

    def overdue(self, now: float) -> ScoreTask | None:
        """The request whose call has exceeded its time limit and holds this process up, or None."""
        limit_s = self._config.time_limit_s
        late = [task for task in self.tasks.values() if task.due_at(limit_s) <= now]
        return min(late, key=lambda task: task.due_at(limit_s), default=None)
