"""Truncated importance sampling: REINFORCE's off-policy weight, cut off from above."""

from dora_rl.algorithms.config import TisConfig
from dora_rl.algorithms.losses.weighted import weighted_policy_gradient
from dora_rl.algorithms.ratios import ratio
from dora_rl.algorithms.tokens import LossTerms, LossTokens


def tis(tokens: LossTokens, config: TisConfig) -> LossTerms:
    """`-sg(min(r, high)) * A * log pi`. Ionides 2008; high = 1: ROLL Flash (2510.11345)."""
    ratio_T = ratio(tokens.logprobs_T.detach(), tokens.behaviour_logprobs_T)
    return weighted_policy_gradient(tokens, ratio_T, 0.0, config.weight_high)
