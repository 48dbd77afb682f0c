"""What control believes about lengths and costs, learned from what it has seen.

Control never sees a true length or a true cost. Lengths are kept as a log-spaced histogram of ended
trajectories; times as running averages. Before anything was seen a prior stands in. No estimate can
break a law: they choose among what is allowed.
"""

import math
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Mapping
from itertools import accumulate
from typing import Protocol

from dora_rl.control.fleet import Cohort
from dora_rl.control.round_cost import LearnedRoundCost
from dora_rl.core.instance_seconds import InstanceSeconds

_BUCKETS_PER_OCTAVE = 4
_REMEMBERED = 2048
"""Number of environments' waits that are remembered."""
_ROWS_A_STEP = 64
"""Tokens that are prefilled in the time of a decode step, before anything was seen of it."""
_KEPT = 0.8
"""Weight of what was seen of prefills and copies before, each time that more is seen."""
_COPIED_PER_COMPUTED = 10
"""Tokens of KV that are copied to or from host memory in the time of prefilling one, before it was seen."""


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


class SpentOn:
    """What one of many things costs, where they are asked for now and paid for a little later.

    Both sides are summed and forgotten alike, so it does not matter between which two looks a thing falls.
    """

    __slots__ = ("_asked", "_spent", "asked")

    def __init__(self, spent: float, asked: int) -> None:
        self._spent, self._asked = spent, float(asked)
        self.asked = 0
        """Things that were asked for since something was last seen of what they cost."""

    @property
    def each(self) -> float:
        return self._spent / self._asked

    def observe(self, spent: float) -> None:
        """Learn that so much was spent since the last look."""
        self._spent = _KEPT * self._spent + spent
        self._asked = _KEPT * self._asked + self.asked
        self.asked = 0


class EnvironmentWaits:
    """How long environments keep the turn, learned from the recent ones that replied."""

    def __init__(self) -> None:
        self._recent: deque[float] = deque(maxlen=_REMEMBERED)
        self._num_seen = 0
        self._stale_at = 1
        self._ordered: list[float] = []
        self._sums: list[float] = [0.0]
        """Sum of the waits from each one on, in order."""

    def observe(self, seconds: float) -> None:
        self._recent.append(seconds)
        self._num_seen += 1

    def remaining(self, waited_s: float) -> float:
        """Expected seconds to a reply after `waited_s`; as many again where no wait seen was longer."""
        if self._num_seen >= self._stale_at:
            self._ordered = sorted(self._recent)
            self._sums = [*reversed([*accumulate(reversed(self._ordered), initial=0.0)])]
            self._stale_at = self._num_seen + len(self._recent) // 10 + 1
        first = bisect_right(self._ordered, waited_s)
        num_longer = len(self._ordered) - first
        return self._sums[first] / num_longer - waited_s if num_longer else waited_s


class Estimates:
    """All that control has learned: lengths, waits, and seconds of loads, moves, decode and train steps."""

    def __init__(
        self, *, lengths: LengthEstimate, load_s: float, move_s: float, step_s: float, bias: float = 1.0
    ) -> None:
        self.lengths = lengths
        self.bias = bias
        self._load = Average(load_s)
        self._move = Average(move_s)
        self._decode = Average(step_s, weight=0.05)
        self.round_cost = LearnedRoundCost()
        self._train: Average | None = None
        self.waits = EnvironmentWaits()
        self._prefill = SpentOn(step_s, _ROWS_A_STEP)
        self._copy = SpentOn(step_s, _ROWS_A_STEP * _COPIED_PER_COMPUTED)
        self._prefill_seen_s: dict[int, float] = {}
        self._copy_seen_s: dict[int, float] = {}
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

    @property
    def prefill_s(self) -> float:
        """Expected seconds an instance needs to prefill one token."""
        return self.bias * self._prefill.each

    @property
    def copy_s(self) -> float:
        """Expected seconds an instance needs to copy the KV of one token to host memory, or back."""
        return self.bias * self._copy.each

    # --- learning ---

    def copies(self, tokens: int) -> None:
        """Instances were told to copy the KV of so many tokens to host memory, or back."""
        self._copy.asked += tokens

    def prefills(self, tokens: int) -> None:
        """So many tokens were given to instances to prefill."""
        self._prefill.asked += tokens

    def instances_told(self, seconds: Mapping[int, InstanceSeconds]) -> None:
        """Learn from what instances say of their own seconds what a prefilled and a copied token took."""
        computed = {key: said.prefill_s + said.recompute_s for key, said in seconds.items()}
        copied = {key: said.kv_moves_s for key, said in seconds.items()}
        for spent, seen, now in (
            (self._prefill, self._prefill_seen_s, computed),
            (self._copy, self._copy_seen_s, copied),
        ):
            spent_s = sum(max(0.0, now_s - seen.get(key, 0.0)) for key, now_s in now.items())
            seen |= now
            if spent_s:
                spent.observe(spent_s)

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
