"""How long the code of an episode may take: to its first turn, between turns, in all."""

import asyncio
from collections.abc import Callable
from typing import Literal

from dora_rl.core.record import Record

LimitFault = Literal["start limit", "call limit"]
_LATE_S = 0.5
"""Seconds that a loop may be late at a limit without that being taken for somebody's fault."""


class EpisodeLimits(Record, frozen=True):
    """The limits of a recipe, in seconds."""

    start_limit_s: float
    call_limit_s: float
    limit_s: float | None = None


class CodeClock:
    """Runs while an episode's code does, and stands still while the run was asked for something.

    An answer gives the code the whole limit of a call. Branches share the clock: one that hangs is noticed
    when no other waits for the run any more.
    """

    def __init__(self, limits: EpisodeLimits, expired: Callable[[LimitFault, float], None]) -> None:
        """Start the clock; `expired` is told which limit the code has exceeded, and how long that is."""
        self._limits = limits
        self._expired = expired
        self._loop = asyncio.get_running_loop()
        self._num_waits = 0
        self._spent_s = 0.0
        self._run("start limit", limits.start_limit_s)

    @property
    def is_used_up(self) -> bool:
        """Whether the code has taken longer in all than an episode may."""
        return self._limits.limit_s is not None and self._spent_s > self._limits.limit_s

    def pause(self) -> None:
        """Note that the run was asked for something."""
        self._num_waits += 1
        if self._num_waits == 1:
            self._timer.cancel()
            self._spent_s += self._loop.time() - self._since

    def resume(self) -> None:
        """Note that the run answered."""
        self._num_waits -= 1
        if not self._num_waits:
            self._run("call limit", self._limits.call_limit_s)

    def stop(self) -> None:
        """Stop for good: the episode is over."""
        self._timer.cancel()

    def _run(self, fault: LimitFault, limit_s: float) -> None:
        self._since = self._loop.time()
        self._timer = self._loop.call_later(limit_s, self._ring, fault, limit_s, self._since + limit_s)

    def _ring(self, fault: LimitFault, limit_s: float, due_at: float) -> None:
        late_s = self._loop.time() - due_at
        if late_s > _LATE_S:
            # Somebody else kept the loop: for as long this code could not go on.
            due_at = self._loop.time() + late_s
            self._timer = self._loop.call_at(due_at, self._ring, fault, limit_s, due_at)
        else:
            self._expired(fault, limit_s)
