"""The clipped surrogate, with its two bounds set apart and an optional third against runaway ratios."""

import torch
from torch import Tensor

from dora_rl.algorithms.config import PpoConfig
from dora_rl.algorithms.ratios import ratio
from dora_rl.algorithms.tokens import LossTerms, LossTokens


def ppo(tokens: LossTokens, config: PpoConfig) -> LossTerms:
    """`-min(r * A, clip(r, 1 - low, 1 + high) * A)` with `r = pi / pi_behaviour`.

    Schulman et al. 2017 (1707.06347); bounds apart: DAPO (2503.14476). With a dual clip `c`, where A < 0 the
    surrogate does not fall below `c * A`: Ye et al. 2020 (1912.09729).
    """
    return clipped_surrogate(
        ratio(tokens.logprobs_T, tokens.behaviour_logprobs_T), tokens.advantages_T, config
    )


def clipped_surrogate(ratio_T: Tensor, advantages_T: Tensor, config: PpoConfig) -> LossTerms:
    """The formula above, of any ratio. A token is clipped where the bound took its gradient away."""
    low, high = 1 - config.clip_low, 1 + config.clip_high
    surrogate_T = torch.minimum(ratio_T * advantages_T, ratio_T.clamp(low, high) * advantages_T)
    is_negative_T = advantages_T < 0
    is_clipped_high_T = (advantages_T > 0) & (ratio_T > high)
    if config.dual_clip is not None:
        floor_T = torch.where(is_negative_T, config.dual_clip * advantages_T, -torch.inf)
        is_clipped_high_T |= surrogate_T < floor_T
        surrogate_T = torch.maximum(surrogate_T, floor_T)
    return LossTerms(
        loss_T=-surrogate_T,
        ratio_T=ratio_T.detach(),
        is_clipped_low_T=is_negative_T & (ratio_T < low),
        is_clipped_high_T=is_clipped_high_T,
    )
