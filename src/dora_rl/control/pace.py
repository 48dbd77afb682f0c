"""Pace: how fast steps and groups go by, and what that predicts.

Predicts when the next batch is needed, whether it will be full by then, and how long a version has
until its deadline. Only predictions: nothing here can break a law.
"""

from dora_rl.control.estimates import Average, Estimates
from dora_rl.control.window import Window

_MANY = 256
"""Trajectories among which a straggler is looked for."""


class Pace:
    """Moving averages of one run, and the predictions made from them."""

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
        self._step_began = now

    def published(self, now: float) -> None:
        elapsed = max(1e-9, now - self._published_at)
        if self._interval is None:
            self._interval = Average(elapsed, weight=0.5)
        self._interval.observe(elapsed)
        self._rate.observe(self._finished_since / elapsed)
        self._published_at, self._finished_since, self._step_began = now, 0, None

    def step_lost(self) -> None:
        self._step_began = None

    def group_finished(self) -> None:
        self._finished_since += 1

    # --- predicting ---

    @property
    def interval_s(self) -> float:
        """Seconds from one publish to the next."""
        return self._interval.value if self._interval else 0.0

    def time_left_s(self, now: float) -> float:
        """Seconds until the trainer can take another batch."""
        if self._step_began is None or self._estimates.train_s is None:
            return 0.0
        return max(0.0, self._estimates.train_s - (now - self._step_began))

    def would_starve(self, now: float) -> bool:
        """Will the trainer find less than a batch when it is done?"""
        expected = self._window.num_finished + self._rate.value * self.time_left_s(now)
        return expected < self._window.batch_groups

    def slack_s(self, version: int, now: float) -> float:
        """Seconds until the last batch that may hold `version` is taken."""
        batches = max(0, version + self._window.max_staleness - self._window.taken)
        return self.time_left_s(now) + batches * self.interval_s

    def can_finish(self, version: int, now: float) -> bool:
        """Would groups of `version` that start now end before their deadline, even a very long one?

        One straggler among them stalls the whole window, so the longest of many counts, not the mean.
        """
        expected_s = self._estimates.lengths.longest_of(_MANY) * self._estimates.step_s
        return 1.1 * expected_s < self.slack_s(version, now)

    @property
    def estimates(self) -> Estimates:
        return self._estimates
