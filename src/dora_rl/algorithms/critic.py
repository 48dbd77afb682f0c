"""With a critic: generalised advantage estimation on packed trajectories, and the critic's own loss.

A step is a policy token; the next step is the trajectory's next policy token, whatever the environment said
between them. After the last there is nothing: its value is 0, also where the trajectory was cut.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from dora_rl.core.recipe.algorithm import GaeConfig


class Estimate(NamedTuple):
    """Advantages and returns by a critic: float32, one number a token."""

    advantages_T: Tensor
    returns_T: Tensor
    """The values that the critic should have given."""


def gae(rewards_T: Tensor, values_T: Tensor, trajectory_T: Tensor, config: GaeConfig) -> Estimate:
    """`A_t = d_t + gamma * lambda * A_t+1` with `d_t = r_t + gamma * V_t+1 - V_t`; returns are `A + V`.

    Schulman et al. 2016 (1506.02438). Not normalised: that is the batch's matter.
    """
    rewards_T, values_T = rewards_T.double(), values_T.detach().double()
    differences_T = rewards_T + config.discount * _next_in_trajectory(values_T, trajectory_T, 1) - values_T
    advantages_T = _discounted_sums(differences_T, trajectory_T, config.discount * config.decay)
    return Estimate(advantages_T.float(), (advantages_T + values_T).float())


def normalised(advantages_T: Tensor, epsilon: float) -> Tensor:
    """Advantages scaled to mean 0 and standard deviation 1 over a batch's tokens; equal ones become 0."""
    if len(advantages_T) == 0:
        return advantages_T
    relative_T = advantages_T.double() - advantages_T.double().min()
    deviations_T = relative_T - relative_T.mean()
    std = (deviations_T.square().sum() / max(1, len(advantages_T) - 1)).sqrt()
    return (deviations_T / (std + epsilon)).float()


def rewards_at_ends(rewards_N: Tensor, trajectory_T: Tensor) -> Tensor:
    """A trajectory's reward at its last token, 0 at the others; lost where a trajectory has no tokens."""
    is_last_T = torch.ones_like(trajectory_T, dtype=torch.bool)
    is_last_T[:-1] = trajectory_T[1:] != trajectory_T[:-1]
    return torch.where(is_last_T, rewards_N[trajectory_T], 0.0)


def _discounted_sums(values_T: Tensor, trajectory_T: Tensor, factor: float) -> Tensor:
    """`sum_k factor^k * value_t+k` to the trajectory's end, in log2(longest) passes of doubling reach."""
    sums_T, reach = values_T, 1
    while reach < len(values_T) and bool((trajectory_T[reach:] == trajectory_T[:-reach]).any()):
        sums_T = sums_T + factor**reach * _next_in_trajectory(sums_T, trajectory_T, reach)
        reach *= 2
    return sums_T


def _next_in_trajectory(values_T: Tensor, trajectory_T: Tensor, ahead: int) -> Tensor:
    """The value `ahead` tokens further on, 0 past the trajectory's end."""
    following_T = torch.zeros_like(values_T)
    is_same = trajectory_T[ahead:] == trajectory_T[:-ahead]
    following_T[:-ahead] = torch.where(is_same, values_T[ahead:], 0.0)
    return following_T


def value_loss(
    values_T: Tensor, returns_T: Tensor, old_values_T: Tensor | None = None, clip: float | None = None
) -> Tensor:
    """Per token `(V - return)^2 / 2`; with a clip, or that of V held within `clip` of the old if larger.

    The clip: Schulman et al. 2017's implementation; Engstrom et al. 2020 (2005.12729).
    """
    loss_T = (values_T - returns_T).square() / 2
    if clip is None:
        return loss_T
    assert old_values_T is not None, "a clip needs the old values"
    held_T = old_values_T + (values_T - old_values_T).clamp(-clip, clip)
    return torch.maximum(loss_T, (held_T - returns_T).square() / 2)
