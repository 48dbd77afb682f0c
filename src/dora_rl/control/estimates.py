"""What control believes about lengths and costs, learned from what it has seen.

Control never sees a true length or a true cost. Lengths are kept as a log-spaced histogram of ended
trajectories; times as running averages. Before anything was seen a prior stands in. No estimate can
break a law: they choose among what is allowed.
"""

import math
from bisect import bisect_left
from typing import Protocol

from dora_rl.control.fleet import Cohort

_BUCKETS_PER_OCTAVE = 4


class LengthEstimate(Protocol):
    """Expected lengths of trajectories in tokens, learned from those that ended."""

    def observe(self, tokens: int) -> None:
        """Learn that a trajectory ended after `tokens`."""

    def mean(self) -> float:
        """Expected tokens of a trajectory that has not started."""

    def longest_of(self, count: int) -> float:
        """Expected tokens of the longest of `count` trajectories."""

    def cohort_tokens(self, cohort: Cohort, clock: float) -> float:
        """Expected tokens that the running requests of a cohort still have to generate."""


class LearnedLengths:
    """A histogram of ended lengths, with a heavier tail assumed beyond the longest seen."""

    def __init__(self, *, prior_tokens: float, max_tokens: int, bias: float = 1.0) -> None:
        self._max_tokens = max_tokens
        self._bias = bias
        self._counts = [0.0] * (self._bucket(max_tokens) + 2)
        self._sums = [0.0] * len(self._counts)
        self._total = 0.0
        self._stale_at = 0.0
        self._tail_counts: list[float] = []
        self._tail_sums: list[float] = []
        for share in (0.25, 0.5, 1.0, 2.25):
            self._add(min(max_tokens, prior_tokens * share), 2.0)

    def observe(self, tokens: int) -> None:
        self._add(float(tokens), 1.0)

    def mean(self) -> float:
        self._refresh()
        return self._bias * self._tail_sums[0] / self._tail_counts[0]

    def remaining(self, progress: float) -> float:
        """Expected tokens left for a trajectory that has generated `progress`."""
        self._refresh()
        bucket = self._bucket(progress) + 1
        left = self._max_tokens - progress
        if bucket >= len(self._counts) or self._tail_counts[bucket] < 1.0:
            return max(1.0, min(left, max(progress, self.mean()))) * self._bias
        mean_beyond = self._tail_sums[bucket] / self._tail_counts[bucket]
        return max(1.0, min(left, mean_beyond - progress)) * self._bias

    def cohort_tokens(self, cohort: Cohort, clock: float) -> float:
        return len(cohort.running) * self.remaining(cohort.progress(clock)) if cohort.running else 0.0

    def longest_of(self, count: int) -> float:
        self._refresh()
        beyond = self._total / (count + 1)
        bucket = bisect_left(self._tail_counts, -beyond, key=lambda c: -c)
        edge: float = min(float(self._max_tokens), 2.0 ** ((bucket + 0.5) / _BUCKETS_PER_OCTAVE))
        return self._bias * edge

    def _add(self, tokens: float, weight: float) -> None:
        bucket = min(self._bucket(tokens), len(self._counts) - 1)
        self._counts[bucket] += weight
        self._sums[bucket] += weight * tokens
        self._total += weight

    def _refresh(self) -> None:
        """Sum the tails again once a tenth more was seen: cost per observation stays constant."""
        if self._total < self._stale_at:
            return
        self._tail_counts, self._tail_sums = list(self._counts), list(self._sums)
        for i in range(len(self._counts) - 2, -1, -1):
            self._tail_counts[i] += self._tail_counts[i + 1]
            self._tail_sums[i] += self._tail_sums[i + 1]
        self._stale_at = 1.1 * self._total

    @staticmethod
    def _bucket(tokens: float) -> int:
        return int(_BUCKETS_PER_OCTAVE * math.log2(tokens)) if tokens > 1.0 else 0


class Average:
    """A running average in which the newest observation weighs at least `weight`."""

    __slots__ = ("_weight", "seen", "value")

    def __init__(self, prior: float, weight: float = 0.3) -> None:
        self.value = prior
        self.seen = 0
        self._weight = weight

    def observe(self, value: float) -> None:
        weight = max(self._weight, 1.0 / (self.seen + 1))
        self.value += weight * (value - self.value)
        self.seen += 1


class Estimates:
    """All that control has learned: lengths, and seconds of loads, moves, decode steps and train steps."""

    def __init__(
        self, *, lengths: LengthEstimate, load_s: float, move_s: float, step_s: float, bias: float = 1.0
    ) -> None:
        self.lengths = lengths
        self.bias = bias
        self._load = Average(load_s)
        self._move = Average(move_s)
        self._decode = Average(step_s, weight=0.05)
        self._train: Average | None = None
        self._loading_since: dict[int, float] = {}
        self._moving_since: dict[int, float] = {}

    # --- believing ---

    @property
    def load_s(self) -> float:
        """Expected seconds an instance needs to load a version."""
        return self.bias * self._load.value

    @property
    def move_s(self) -> float:
        """Expected seconds for which a request does not decode when it moves."""
        return self.bias * self._move.value

    @property
    def step_s(self) -> float:
        """Expected seconds of one decode step."""
        return self.bias * self._decode.value

    @property
    def train_s(self) -> float | None:
        """Expected seconds of one train step; None before the first one ended."""
        return self.bias * self._train.value if self._train else None

    # --- learning ---

    def decoded(self, step_s: float) -> None:
        self._decode.observe(step_s)

    def trained(self, train_s: float) -> None:
        if self._train is None:
            self._train = Average(train_s, weight=0.5)
        self._train.observe(train_s)

    def load_began(self, instance: int, now: float) -> None:
        self._loading_since[instance] = now

    def load_ended(self, instance: int, now: float) -> None:
        if (since := self._loading_since.pop(instance, None)) is not None:
            self._load.observe(now - since)

    def move_began(self, trajectory: int, now: float) -> None:
        self._moving_since[trajectory] = now

    def move_ended(self, trajectory: int, now: float) -> None:
        if (since := self._moving_since.pop(trajectory, None)) is not None:
            self._move.observe(now - since)

    def forget_instance(self, instance: int) -> None:
        self._loading_since.pop(instance, None)
