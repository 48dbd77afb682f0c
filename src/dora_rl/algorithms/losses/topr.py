"""Tapered off-policy REINFORCE: what failed is pushed down only as far as the policy would still do it."""

import torch
from torch import Tensor

from dora_rl.algorithms.config import ToprConfig
from dora_rl.algorithms.ratios import bounded_exp, nowhere
from dora_rl.algorithms.segments import sums_T
from dora_rl.algorithms.tokens import LossTerms, LossTokens


def topr(tokens: LossTokens, config: ToprConfig) -> LossTerms:
    """`-A * log pi` where A > 0, `-sg(min(R, high)) * A * log pi` where A < 0, each times its share.

    R is the ratio of the whole trajectory, the product of its tokens'. Le Roux et al. 2025 (2503.14286); the
    two shares, and R of each token, are of ROLL Flash (2510.11345).
    """
    ratio_T = _ratio(tokens, config)
    is_negative_T = tokens.advantages_T < 0
    tapered_T = config.negative_share * ratio_T.clamp(max=config.weight_high)
    weight_T = torch.where(is_negative_T, tapered_T, config.positive_share)
    return LossTerms(
        loss_T=-weight_T * tokens.advantages_T * tokens.logprobs_T,
        ratio_T=ratio_T,
        is_clipped_low_T=nowhere(ratio_T),
        is_clipped_high_T=is_negative_T & (ratio_T > config.weight_high),
    )


def _ratio(tokens: LossTokens, config: ToprConfig) -> Tensor:
    log_ratio_T = tokens.logprobs_T.detach() - tokens.behaviour_logprobs_T
    if config.level == "sequence":
        log_ratio_T = sums_T(log_ratio_T, tokens.trajectory_T, tokens.num_trajectories)
    return bounded_exp(log_ratio_T)
