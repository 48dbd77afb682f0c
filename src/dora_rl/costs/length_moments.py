"""Moments of the length models: the figures of a distribution that the cost models need. Pure."""

import json
from functools import lru_cache
from math import exp, log
from pathlib import Path
from statistics import NormalDist

from dora_rl.core.errors import ConfigError
from dora_rl.core.recipe import Empirical, ImaginedTask, Lognormal
from dora_rl.core.record import Record

_GRID = 4096


class Moments(Record, frozen=True):
    """Tokens that a trajectory generates, and the KV it holds on average while it does."""

    mean: float
    longest: float
    mean_context: float
    """Mean tokens of KV of a running request: long ones run longer, so they count for more."""


def quantile(lengths: Lognormal | Empirical, u: float) -> int:
    """The length below which a share `u` of the trajectories lie."""
    if isinstance(lengths, Empirical):
        values = read_lengths(lengths.path)
        return min(lengths.max_tokens, values[min(len(values) - 1, int(u * len(values)))])
    tokens = lengths.median_tokens * exp(lengths.sigma * NormalDist().inv_cdf(u))
    return int(min(lengths.max_tokens, max(lengths.min_tokens, tokens)))


@lru_cache(maxsize=64)
def moments(task: ImaginedTask) -> Moments:
    """The moments of a task's lengths, over a fine grid of quantiles; context includes the prompt."""
    values = [quantile(task.lengths, (i + 0.5) / _GRID) for i in range(_GRID)]
    mean = sum(values) / _GRID
    square = sum(v * v for v in values) / _GRID
    extra = (task.turns.mean_turns - 1.0) * task.turns.environment_tokens
    context = task.prompt_tokens + extra / 2 + square / (2 * mean)
    return Moments(mean=mean, longest=quantile(task.lengths, 1 - 1e-6), mean_context=context)


def tokens_per_trajectory(task: ImaginedTask) -> float:
    """Mean tokens of a trajectory: prompt, response and environment."""
    extra = (task.turns.mean_turns - 1.0) * task.turns.environment_tokens
    return task.prompt_tokens + extra + moments(task).mean


def longest_wait_s(task: ImaginedTask) -> float:
    """Seconds of the environment in an episode of very many turns: one in ten thousand has more."""
    turns = task.turns
    if turns.mean_turns == 1.0:
        return 0.0
    most = log(1e-4) / log(1.0 - 1.0 / turns.mean_turns)
    return most * turns.latency_s * exp(turns.latency_sigma**2 / 2)


@lru_cache(maxsize=8)
def read_lengths(path: str) -> tuple[int, ...]:
    """The sorted lengths in a JSON file."""
    try:
        values = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(
            f"cannot read {path}: {error.strerror}", hint="lengths.path names a JSON list"
        ) from error
    except ValueError as error:
        raise ConfigError(
            f"{path} is no JSON: {error}", hint="a list of integers, e.g. [120, 512, 90]"
        ) from error
    if not isinstance(values, list) or not values or not all(isinstance(v, int) and v > 0 for v in values):
        raise ConfigError(f"{path} is no list of positive integers", hint="e.g. [120, 512, 90]")
    return tuple(sorted(values))
