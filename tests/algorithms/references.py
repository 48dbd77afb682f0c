"""The formulas again, in plain Python floats and loops, with their gradients derived by hand.

A reference gives `(loss, gradient)` for every token of one trajectory: its term, and the derivative of the
sum of the trajectory's terms by its logprob.
"""

import math
from collections.abc import Callable, Sequence
from statistics import mean, stdev
from typing import Any

from dora_rl.core.recipe import loss_configs as c
from dora_rl.core.recipe.algorithm import AdvantageConfig, AggregationConfig

from .batches import Trajectory

Terms = list[tuple[float, float]]


def surrogate(ratio: float, advantage: float, low: float, high: float) -> tuple[float, float]:
    if advantage >= 0 and ratio > 1 + high:
        return -(1 + high) * advantage, 0.0
    if advantage < 0 and ratio < 1 - low:
        return -(1 - low) * advantage, 0.0
    return -ratio * advantage, -ratio * advantage


def policy_gradient(t: Trajectory, config: c.PolicyGradientConfig) -> Terms:
    return [(-t.advantage * p, -t.advantage) for p in t.logprobs]


def ppo(t: Trajectory, config: c.PpoConfig) -> Terms:
    terms = []
    for p, b in zip(t.logprobs, t.behaviour, strict=True):
        term = surrogate(math.exp(p - b), t.advantage, config.clip_low, config.clip_high)
        if config.dual_clip is not None and t.advantage < 0 and math.exp(p - b) > config.dual_clip:
            term = (-config.dual_clip * t.advantage, 0.0)
        terms.append(term)
    return terms


def gspo(t: Trajectory, config: c.GspoConfig) -> Terms:
    if not t.logprobs:
        return []
    ratio = math.exp(math.fsum(p - b for p, b in zip(t.logprobs, t.behaviour, strict=True)) / len(t.logprobs))
    # Every one of n equal terms depends on every logprob by 1 / n: the sum's derivative is one term's.
    return [surrogate(ratio, t.advantage, config.clip_low, config.clip_high)] * len(t.logprobs)


def cispo(t: Trajectory, config: c.CispoConfig) -> Terms:
    terms = []
    for p, b in zip(t.logprobs, t.behaviour, strict=True):
        weight = min(max(math.exp(p - b), config.weight_low), config.weight_high)
        terms.append((-weight * t.advantage * p, -weight * t.advantage))
    return terms


def tis(t: Trajectory, config: c.TisConfig) -> Terms:
    weights = [min(math.exp(p - b), config.weight_high) for p, b in zip(t.logprobs, t.behaviour, strict=True)]
    return [(-w * t.advantage * p, -w * t.advantage) for w, p in zip(weights, t.logprobs, strict=True)]


def topr(t: Trajectory, config: c.ToprConfig) -> Terms:
    gaps = [p - b for p, b in zip(t.logprobs, t.behaviour, strict=True)]
    if config.level == "sequence":
        gaps = [math.fsum(gaps)] * len(gaps)
    terms = []
    for p, gap in zip(t.logprobs, gaps, strict=True):
        weight = config.positive_share
        if t.advantage < 0:
            weight = config.negative_share * min(math.exp(gap), config.weight_high)
        terms.append((-weight * t.advantage * p, -weight * t.advantage))
    return terms


def decoupled_ppo(t: Trajectory, config: c.DecoupledPpoConfig) -> Terms:
    terms = []
    for p, b, x in zip(t.logprobs, t.behaviour, t.proximal, strict=True):
        weight = min(math.exp(x - b), config.weight_high)
        loss, gradient = surrogate(math.exp(p - x), t.advantage, config.clip_low, config.clip_high)
        terms.append((weight * loss, weight * gradient))
    return terms


def kimi15(t: Trajectory, config: c.Kimi15Config) -> Terms:
    moved = math.fsum(p - b for p, b in zip(t.logprobs, t.behaviour, strict=True))
    square = config.tau / 2 * moved**2
    return [
        (-t.advantage * p + square / len(t.logprobs), -t.advantage + config.tau * moved) for p in t.logprobs
    ]


REFERENCES: dict[type[c.LossConfig], Callable[[Trajectory, Any], Terms]] = {
    c.PolicyGradientConfig: policy_gradient,
    c.PpoConfig: ppo,
    c.GspoConfig: gspo,
    c.CispoConfig: cispo,
    c.TisConfig: tis,
    c.ToprConfig: topr,
    c.DecoupledPpoConfig: decoupled_ppo,
    c.Kimi15Config: kimi15,
}


def batch_loss(losses: Sequence[Sequence[float]], config: AggregationConfig) -> float:
    """Token losses by trajectory into one number."""
    some = [trajectory for trajectory in losses if trajectory]
    if not some:
        return 0.0
    if config.over == "token":
        return mean([loss for trajectory in some for loss in trajectory])
    if config.over == "sequence":
        return mean([mean(trajectory) for trajectory in some])
    assert config.length is not None
    return mean([math.fsum(trajectory) / config.length for trajectory in some])


def advantages(rewards: Sequence[float], groups: Sequence[int], config: AdvantageConfig) -> list[float]:
    members = {group: [r for r, g in zip(rewards, groups, strict=True) if g == group] for group in groups}
    deviations = []
    for reward, group in zip(rewards, groups, strict=True):
        own = members[group]
        if config.baseline == "none":
            deviations.append(reward)
        elif config.baseline == "batch":
            deviations.append(reward - mean(rewards))
        elif config.baseline == "group":
            deviations.append(reward - mean(own))
        else:
            others = (sum(own) - reward) / (len(own) - 1) if len(own) > 1 else reward
            deviations.append(reward - others)
    if config.scale == "none":
        return deviations
    spreads = [deviations if config.scale == "batch" else members[group] for group in groups]
    scales = [(stdev(s) if len(s) > 1 else 0.0) + config.epsilon for s in spreads]
    return [deviation / scale for deviation, scale in zip(deviations, scales, strict=True)]


def gae(rewards: Sequence[float], values: Sequence[float], discount: float, decay: float) -> list[float]:
    """Of one trajectory, from its end."""
    estimate, following, estimates = 0.0, 0.0, []
    for reward, value in zip(reversed(rewards), reversed(values), strict=True):
        estimate = reward + discount * following - value + discount * decay * estimate
        following = value
        estimates.append(estimate)
    return estimates[::-1]
