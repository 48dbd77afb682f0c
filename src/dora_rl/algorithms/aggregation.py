"""From token losses to the loss of a batch: a weight for every token, from counts of the whole batch.

`sum(loss_T * weights_T)`, added up over micro-batches, is the loss of the batch (or mini-batch) however it is
split, because no weight depends on what else is in the micro-batch.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from dora_rl.algorithms.tokens import lengths_N
from dora_rl.core.recipe.algorithm import AggregationConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchCounts:
    """Counts of everything one optimizer update sees, over all its micro-batches and ranks."""

    num_tokens: int
    """Number of trained policy tokens."""
    num_trajectories: int
    """Number of trajectories with at least one trained token."""


def token_weights(
    config: AggregationConfig, trajectory_T: Tensor, num_trajectories: int, counts: BatchCounts
) -> Tensor:
    """The weight of each token of a micro-batch of `num_trajectories` whole trajectories, float32.

    `token`     1 / tokens                        DAPO (2503.14476)
    `sequence`  1 / (trajectories * own tokens)   GRPO (2402.03300)
    `constant`  1 / (trajectories * length)       Dr. GRPO (2503.20783)
    """
    ones_T = torch.ones(len(trajectory_T), device=trajectory_T.device)
    if config.over == "token":
        return ones_T / max(1, counts.num_tokens)
    if config.over == "sequence":
        own_tokens_T = lengths_N(trajectory_T, num_trajectories)[trajectory_T]
        return ones_T / (max(1, counts.num_trajectories) * own_tokens_T)
    assert config.length is not None, "a trainer fills in the run's cap"
    return ones_T / (max(1, counts.num_trajectories) * config.length)
