"""The truth the simulator knows and control does not: lengths, turns, latencies and rewards."""

from math import exp, log, sqrt
from statistics import NormalDist

from dora_rl.core.recipe import Empirical, Task
from dora_rl.costs.lengths import quantile
from dora_rl.sim.chance import normal, uniform

_NORMAL = NormalDist()

_LENGTH, _SIBLINGS, _TURNS, _LATENCY, _FAILURE, _VARIANCE, _REWARD, _PROMPT = range(8)


class Truth:
    """What will happen to each trajectory, keyed by (epoch, row, member, attempt)."""

    def __init__(self, task: Task, seed: int) -> None:
        self._task = task
        self._seed = seed
        lengths = task.lengths
        self._own = sqrt(1.0 - lengths.sibling_correlation)
        self._common = sqrt(lengths.sibling_correlation)

    def prompt_tokens(self) -> list[int]:
        """The length of every prompt: spread around the mean by a third."""
        mean = self._task.prompt_tokens
        rows = range(self._task.rows)
        return [max(1, int(mean * (0.67 + 0.66 * uniform(self._seed, _PROMPT, row)))) for row in rows]

    def response_tokens(self, epoch: int, row: int, member: int, attempt: int) -> int:
        lengths = self._task.lengths
        own = normal(self._seed, _LENGTH, epoch, row, member, attempt)
        z = self._own * own + (self._common * normal(self._seed, _SIBLINGS, row) if self._common else 0.0)
        if isinstance(lengths, Empirical):
            return quantile(lengths, _NORMAL.cdf(z))
        tokens = exp(log(lengths.median_tokens) + lengths.sigma * z)
        return int(min(lengths.max_tokens, max(lengths.min_tokens, tokens)))

    def is_truncated(self, tokens: int) -> bool:
        return tokens >= self._task.lengths.max_tokens

    def turns(self, trajectory: int, attempt: int) -> int:
        """How many turns its response is split into."""
        mean = self._task.turns.mean_turns
        if mean == 1.0:
            return 1
        return 1 + int(log(uniform(self._seed, _TURNS, trajectory, attempt)) / log(1.0 - 1.0 / mean))

    def latency_s(self, trajectory: int, turn: int) -> float:
        t = self._task.turns
        return t.latency_s * exp(t.latency_sigma * normal(self._seed, _LATENCY, trajectory, turn))

    def environment_fails(self, trajectory: int, turn: int, attempt: int) -> bool:
        rate = self._task.turns.failure_rate
        return rate > 0 and uniform(self._seed, _FAILURE, trajectory, turn, attempt) < rate

    def reward(self, group: int, member: int) -> float:
        """1 or 0; the first two members differ unless the whole group is without variance."""
        if uniform(self._seed, _VARIANCE, group) < self._task.zero_variance_rate:
            return 0.0
        if member < 2:
            return float(member)
        return float(uniform(self._seed, _REWARD, group, member) < 0.5)
