"""What it costs a trajectory to reach the length cap, or to come near.

Masking leaves its tokens out of the loss and counts it under a label; its reward still counts in its group.
The soft penalty lowers the reward before the cap is reached, so that length is learned and not only punished.
"""

from torch import Tensor

from dora_rl.algorithms.config import OverlongConfig

MASKED_OVERLONG = "masked: overlong"
"""The label under which a masked trajectory is counted."""


def is_masked(is_cut_N: Tensor, config: OverlongConfig) -> Tensor:
    """Which trajectories have no token in the loss, of those that were cut at the cap (bool)."""
    return is_cut_N & config.mask


def rewards_less_overlong(
    rewards_N: Tensor, tokens_N: Tensor, config: OverlongConfig, *, max_tokens: int
) -> Tensor:
    """`reward - penalty * clip((tokens - (cap - buffer)) / buffer, 0, 1)`, `buffer = buffer_share * cap`.

    DAPO (2503.14476), equation 13, has penalty 1 and a buffer of 4,096 of 20,480 tokens. `tokens_N` counts
    the policy tokens generated, masked or not.
    """
    buffer_tokens = config.buffer_share * max_tokens
    share_N = (tokens_N - (max_tokens - buffer_tokens)) / buffer_tokens
    return rewards_N - config.penalty * share_N.clamp(0, 1).to(rewards_N.dtype)
