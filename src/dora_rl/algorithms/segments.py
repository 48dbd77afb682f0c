"""Sums and means over each trajectory's tokens, given back to every one of them."""

import torch
from torch import Tensor


def sums_N(values_T: Tensor, trajectory_T: Tensor, num_trajectories: int) -> Tensor:
    """Of each trajectory; 0 where it has no tokens."""
    # In float64: a long trajectory's small log ratios would lose their digits one by one, and the order
    # in which a GPU adds them would show.
    sums = torch.zeros(num_trajectories, dtype=torch.float64, device=values_T.device)
    return sums.index_add(0, trajectory_T, values_T.double()).to(values_T.dtype)


def lengths_N(trajectory_T: Tensor, num_trajectories: int) -> Tensor:
    """Tokens of each trajectory."""
    # Not bincount, which looks for the largest on the host, who then waits for the device.
    counts = torch.zeros(num_trajectories, dtype=torch.int64, device=trajectory_T.device)
    return counts.index_add(0, trajectory_T, torch.ones_like(trajectory_T))


def sums_T(values_T: Tensor, trajectory_T: Tensor, num_trajectories: int) -> Tensor:
    """The sum of each token's trajectory."""
    return sums_N(values_T, trajectory_T, num_trajectories)[trajectory_T]


def means_T(values_T: Tensor, trajectory_T: Tensor, num_trajectories: int) -> Tensor:
    """The mean of each token's trajectory."""
    return (
        sums_T(values_T, trajectory_T, num_trajectories)
        / lengths_N(trajectory_T, num_trajectories)[trajectory_T]
    )
