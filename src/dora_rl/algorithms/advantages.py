"""Advantages of trajectories, from their rewards and groups.

Computed in float64 and rounded once to float32. Where the rewards a baseline is taken over are all equal the
advantage is exactly 0, not what rounding leaves of a mean.
"""

import torch
from torch import Tensor

from dora_rl.core.errors import DoraError
from dora_rl.core.recipe.algorithm import AdvantageConfig


class RewardError(DoraError):
    """A reward that is not a finite number: one such would turn its whole batch into NaN."""


def outcome_advantages(rewards_N: Tensor, group_N: Tensor, config: AdvantageConfig) -> Tensor:
    """`(reward - baseline) / (std + epsilon)`; see the configuration for which baseline and which std.

    Groups may be of any size and in any order. A group of one has no other to be compared with: 0 with a
    baseline of its group, its own reward without.
    """
    _check_finite(rewards_N)
    rewards_N = rewards_N.double()
    deviations_N = _less_baseline(rewards_N, group_N, config.baseline)
    return (deviations_N / _scale(rewards_N, deviations_N, group_N, config)).float()


def turn_advantages(
    rewards_N: Tensor, group_N: Tensor, given_K: Tensor, trajectory_K: Tensor, config: AdvantageConfig
) -> Tensor:
    """`(return from a turn on - baseline) / (std + epsilon)` of every turn, axis K.

    `given_K` is what was given in the turn's trajectory before it, so the return from it on is what is left
    of the trajectory's reward. Baseline and std are those of whole rewards, the same for all turns: episodes
    whose n-th turns have nothing to do with each other are not compared by n. Where whole rewards have no
    deviation to divide by, and in a group of one, the advantage is 0.
    """
    _check_finite(rewards_N)
    rewards_N = rewards_N.double()
    deviations_N = _less_baseline(rewards_N, group_N, config.baseline)
    scale_N = _scale(rewards_N, deviations_N, group_N, config) * torch.ones_like(rewards_N)
    is_compared_N = torch.ones_like(rewards_N, dtype=torch.bool)
    if config.baseline != "none":
        is_compared_N = _size(torch.zeros_like(group_N) if config.baseline == "batch" else group_N) > 1
    if config.scale != "none":
        is_compared_N &= scale_N > config.epsilon
    turns_K = (deviations_N[trajectory_K] - given_K.double()) / scale_N[trajectory_K]
    return torch.where(is_compared_N[trajectory_K], turns_K, 0.0).float()


def _check_finite(rewards_N: Tensor) -> None:
    # As float32, in which advantages leave: what overflows there is no number either.
    bad = (~torch.isfinite(rewards_N.float())).nonzero().flatten().tolist()
    if bad:
        raise RewardError(
            f"the reward of trajectory {bad[0]} is {rewards_N[bad[0]].item()}; {len(bad)} of {len(rewards_N)}"
            " are not finite",
            hint="a trajectory whose reward is no number has failed: leave it out before the batch is taken",
        )


def _less_baseline(rewards_N: Tensor, group_N: Tensor, baseline: str) -> Tensor:
    if baseline == "none":
        return rewards_N
    if baseline == "batch":
        return _deviations(rewards_N, torch.zeros_like(group_N))
    deviations_N = _deviations(rewards_N, group_N)
    if baseline == "group":
        return deviations_N
    # r - (sum - r) / (n - 1) = (r - mean) * n / (n - 1); a group of one has deviation 0.
    size_N = _size(group_N).double()
    return deviations_N * size_N / (size_N - 1).clamp(min=1)


def _scale(
    rewards_N: Tensor, deviations_N: Tensor, group_N: Tensor, config: AdvantageConfig
) -> Tensor | float:
    if config.scale == "none":
        return 1.0
    if config.scale == "group":
        return _std(rewards_N, group_N) + config.epsilon
    return _std(deviations_N, torch.zeros_like(group_N)) + config.epsilon


def _std(values_N: Tensor, group_N: Tensor) -> Tensor:
    """The standard deviation of each value's group, ddof 1; 0 for a group of one."""
    squares_N = _sum(_deviations(values_N, group_N).square(), group_N)
    return (squares_N / (_size(group_N) - 1).clamp(min=1)).sqrt()


def _deviations(values_N: Tensor, group_N: Tensor) -> Tensor:
    """Deviations from the mean of each value's group; exactly 0 where the group's values are all equal."""
    # Relative to the lowest: equal values become zeros before any rounding, and their mean a zero.
    lowest = values_N.new_zeros(_num_groups(group_N))
    lowest = lowest.scatter_reduce(0, group_N, values_N, "amin", include_self=False)
    relative_N = values_N - lowest[group_N]
    return relative_N - _sum(relative_N, group_N) / _size(group_N)


def _sum(values_N: Tensor, group_N: Tensor) -> Tensor:
    return values_N.new_zeros(_num_groups(group_N)).index_add(0, group_N, values_N)[group_N]


def _size(group_N: Tensor) -> Tensor:
    return torch.bincount(group_N)[group_N]


def _num_groups(group_N: Tensor) -> int:
    return int(group_N.max()) + 1 if len(group_N) else 0
