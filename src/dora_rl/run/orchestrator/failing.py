"""Failures of reward functions: written down, counted, and nothing but failures is the end of the run.

The run ends when a batch's worth of trajectories in a row failed, in whatever way. Where calls give no answer
at all (they hang, or kill their process) it ends sooner, because each costs its time limit: after a few of
them in a row. Those must last some time limits together: many calls that wait at once for the same judge
survive a short outage of it.
"""

import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from dora_rl.core.errors import DoraError
from dora_rl.envs.scoring.messages import RewardFailure

_UNANSWERED = ("process died", "time limit")
_MAX_UNANSWERED = 8
_UNANSWERED_LIMITS = 3
"""Time limits that calls without an answer last at least, from the beginning of the first on."""
_WRITTEN = 100
"""Failures of a kind whose traceback is written down."""


class RewardsFailed(DoraError):
    """Reward functions fail over everything."""


class RewardFailures:
    """The failures of a run, since this process began."""

    def __init__(
        self,
        log: Path,
        *,
        max_in_a_row: int,
        time_limit_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._log = log
        self._max_in_a_row = max_in_a_row
        self._patience_s = (_UNANSWERED_LIMITS - 1) * time_limit_s
        self._clock = clock
        self.total: Counter[str] = Counter()
        """Trajectories, by the label of the failure."""
        self._calls: Counter[str] = Counter()
        self._latest: RewardFailure | None = None
        self._last: dict[str, RewardFailure] = {}
        """Of each label: all members of a group share the failure of one call."""
        self._in_a_row = 0
        self._unanswered: list[float] = []
        """When calls in a row were given up."""

    def judged(self, failures: Sequence[RewardFailure]) -> None:
        """A trajectory was judged, with these failures or with none."""
        self._in_a_row = self._in_a_row + 1 if failures else 0
        if not any(failure.reason in _UNANSWERED for failure in failures):
            self._unanswered.clear()
        for failure in failures:
            self.total[failure.label] += 1
            if self._last.get(failure.label) is not failure:
                self._last[failure.label] = failure
                self._called(failure)

    def check(self) -> None:
        """RewardsFailed if there is nothing but failures any more."""
        lasted_s = self._clock() - self._unanswered[0] if self._unanswered else 0.0
        if len(self._unanswered) >= _MAX_UNANSWERED and lasted_s >= self._patience_s:
            raise self._end(f"{len(self._unanswered)} calls of reward functions in a row gave no answer")
        if self._in_a_row >= self._max_in_a_row:
            raise self._end(f"rewards failed for {self._in_a_row} trajectories in a row")

    def close(self) -> None:
        """Say how many there were of what was not written down."""
        for label, number in self._calls.items():
            if number > _WRITTEN:
                self._write(f"{label}: {number:,} times, of which the first {_WRITTEN} are above\n")

    def _called(self, failure: RewardFailure) -> None:
        self._latest = failure
        if failure.reason in _UNANSWERED:
            self._unanswered.append(self._clock())
        self._calls[failure.label] += 1
        if self._calls[failure.label] <= _WRITTEN:
            self._write(f"{failure.label}; row {failure.row}\n{failure.detail.rstrip()}\n")

    def _write(self, text: str) -> None:
        with self._log.open("a", encoding="utf-8") as log:
            log.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {text}")

    def _end(self, what: str) -> RewardsFailed:
        last = self._latest
        assert last is not None, f"{what}, and none was counted"
        kind = last.label.removeprefix("failed: ")
        return RewardsFailed(
            f"{what}, the last one by {kind}: {last.summary}",
            hint=f"see {self._log} and mend the function",
        )
