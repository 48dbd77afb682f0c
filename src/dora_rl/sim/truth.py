"""The truth the simulator knows and control does not: lengths, turns, latencies and rewards."""

from functools import lru_cache
from math import exp, log, sqrt
from statistics import NormalDist

from dora_rl.core.recipe import Empirical, ImaginedTask
from dora_rl.costs.length_moments import quantile
from dora_rl.sim.chance import Draws

_NORMAL = NormalDist()

_LENGTH, _SIBLINGS, _TURNS, _LATENCY, _FAILURE, _VARIANCE, _REWARD, _PROMPT, _RESET, _ROLE = range(10)


class Truth:
    """What will happen to each trajectory, drawn by (epoch, row, member, attempt)."""

    def __init__(self, task: ImaginedTask, seed: int) -> None:
        self._task = task
        # Siblings start together: what they share of the key is mixed in once.
        self._lengths = lru_cache(maxsize=64)(lambda epoch, row: Draws(seed, _LENGTH, epoch, row))
        self._siblings = Draws(seed, _SIBLINGS)
        self._turns = Draws(seed, _TURNS)
        self._latencies = Draws(seed, _LATENCY)
        self._failures = Draws(seed, _FAILURE)
        self._variances = Draws(seed, _VARIANCE)
        self._rewards = Draws(seed, _REWARD)
        self._prompts = Draws(seed, _PROMPT)
        self._resets = Draws(seed, _RESET)
        self._roles = Draws(seed, _ROLE)
        lengths = task.lengths
        self._log_median = 0.0 if isinstance(lengths, Empirical) else log(lengths.median_tokens)
        self._max_tokens = lengths.max_tokens
        self._own = sqrt(1.0 - lengths.sibling_correlation)
        self._common = sqrt(lengths.sibling_correlation)

    def prompt_tokens(self) -> list[int]:
        """Tokens of every row's prompt: spread around the mean by a third."""
        mean = self._task.prompt_tokens
        rows = range(self._task.rows)
        return [max(1, int(mean * (0.67 + 0.66 * self._prompts.uniform(row)))) for row in rows]

    def response_tokens(self, epoch: int, row: int, member: int, attempt: int) -> int:
        lengths = self._task.lengths
        own = self._lengths(epoch, row).normal(member, attempt)
        z = self._own * own + (self._common * self._siblings.normal(row) if self._common else 0.0)
        if isinstance(lengths, Empirical):
            return quantile(lengths, _NORMAL.cdf(z))
        tokens = int(exp(self._log_median + lengths.sigma * z))
        if tokens < lengths.min_tokens:
            return lengths.min_tokens
        return tokens if tokens < lengths.max_tokens else lengths.max_tokens

    def is_truncated(self, tokens: int) -> bool:
        return tokens >= self._max_tokens

    def turns(self, key: tuple[int, ...], attempt: int) -> int:
        """Number of turns that a trajectory's response is split into."""
        mean = self._task.turns.mean_turns
        if mean == 1.0:
            return 1
        return 1 + int(log(self._turns.uniform(*key, attempt)) / log(1.0 - 1.0 / mean))

    def latency_s(self, key: tuple[int, ...], turn: int) -> float:
        t = self._task.turns
        return t.latency_s * exp(t.latency_sigma * self._latencies.normal(*key, turn))

    def role_tokens(self, key: tuple[int, ...], turn: int) -> int:
        """Tokens that a role says before the environment's reply to a turn."""
        return max(1, int(self._task.turns.role_tokens * exp(0.5 * self._roles.normal(*key, turn))))

    def environment_fails(self, key: tuple[int, ...], turn: int, attempt: int) -> bool:
        rate = self._task.turns.failure_rate
        return rate > 0 and self._failures.uniform(*key, turn, attempt) < rate

    def reset(self, *key: int, tries: int) -> tuple[float, bool]:
        """Seconds until an environment is reset, or given up after so many tries; and which of the two."""
        t = self._task.turns
        seconds = 0.0
        for number in range(tries):
            seconds += t.reset_s * exp(t.latency_sigma * self._resets.normal(*key, number, 0))
            if t.failure_rate == 0 or self._resets.uniform(*key, number, 1) >= t.failure_rate:
                return seconds, True
        return seconds, False

    def reward(self, group: int, member: int) -> float:
        """Reward of a trajectory, 1 or 0; a group's first two differ unless it is without variance."""
        rate = self._task.zero_variance_rate
        if rate and self._variances.uniform(group) < rate:
            return 0.0
        if member < 2:
            return float(member)
        return float(self._rewards.uniform(group, member) < 0.5)
