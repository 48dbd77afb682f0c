"""Pace: how fast steps and groups go by, and what that predicts.

Predicts when the next batch is needed, whether it will be full by then, and how long a version has
until its deadline. Only predictions: nothing here can break a law.
"""

import math

from dora_rl.control.estimates import Average, Estimates
from dora_rl.control.window import Window

_MANY = 256
"""Number of trajectories whose longest one a version must have time for."""


class Pace:
    """Averages of train steps and finished groups over time, and the predictions made from them."""

    def __init__(self, window: Window, estimates: Estimates) -> None:
        self._window = window
        self._estimates = estimates
        self._interval: Average | None = None
        self._rate = Average(0.0, weight=0.3)
        self._step_began: float | None = None
        self._published_at = 0.0
        self._finished_since = 0

    # --- telling ---

    def taken(self, now: float) -> None:
        """A batch was taken: its step begins now."""
        self._step_began = now

    def published(self, now: float) -> None:
        """A version was published: learn the interval and the rate of finished groups."""
        elapsed = max(1e-9, now - self._published_at)
        if self._interval is None:
            self._interval = Average(elapsed, weight=0.5)
        self._interval.observe(elapsed)
        self._rate.observe(self._finished_since / elapsed)
        self._published_at, self._finished_since, self._step_began = now, 0, None

    def step_lost(self) -> None:
        """The step in flight was lost: none is under way."""
        self._step_began = None

    def group_finished(self) -> None:
        """Count a finished group."""
        self._finished_since += 1

    # --- predicting ---

    @property
    def interval_s(self) -> float:
        """Expected seconds from one publish to the next; 0 before the first."""
        return self._interval.value if self._interval else 0.0

    @property
    def is_training(self) -> bool:
        """Whether a train step is under way."""
        return self._step_began is not None

    def time_left_s(self, now: float) -> float:
        """Expected seconds until the trainer can take another batch; 0 if it is idle."""
        if self._step_began is None or self._estimates.train_s is None:
            return 0.0
        return max(0.0, self._estimates.train_s - (now - self._step_began))

    def is_overdue(self, now: float) -> bool:
        """Whether the step under way has taken half as long again as expected."""
        if self._step_began is None or self._estimates.train_s is None:
            return False
        return now - self._step_began > 1.5 * self._estimates.train_s

    def next_batch_is_safe(self, now: float) -> bool:
        """Whether B groups will most likely (at 95 %) be finished when the step under way ends on time."""
        if self._estimates.train_s is None or self.is_overdue(now):
            return False
        coming = self._rate.value * self.time_left_s(now)
        return self._window.num_finished + coming - 1.65 * math.sqrt(coming) >= self._window.batch_groups

    def would_starve(self, now: float) -> bool:
        """Whether fewer than B groups are expected to be finished when the trainer can take a batch."""
        expected = self._window.num_finished + self._rate.value * self.time_left_s(now)
        return expected < self._window.batch_groups

    def slack_s(self, version: int, now: float) -> float:
        """Expected seconds until the last batch that may hold `version` is taken."""
        batches = max(0, version + self._window.max_staleness - self._window.taken)
        return self.time_left_s(now) + batches * self.interval_s

    def can_finish(self, version: int, now: float) -> bool:
        """Whether groups of `version` that start now should end before their deadline, even a long one.

        One straggler among them stalls the whole window, so the longest of many counts, not the mean.
        """
        expected_s = self._estimates.lengths.longest_of(_MANY) * self._estimates.step_s
        return 1.6 * expected_s < self.slack_s(version, now)

    @property
    def estimates(self) -> Estimates:
        return self._estimates
