"""Clipped importance weights: the weight is bounded, the token keeps its gradient."""

from dora_rl.algorithms.config import CispoConfig
from dora_rl.algorithms.losses.weighted import weighted_policy_gradient
from dora_rl.algorithms.ratios import ratio
from dora_rl.algorithms.tokens import LossTerms, LossTokens


def cispo(tokens: LossTokens, config: CispoConfig) -> LossTerms:
    """`-sg(clip(r, low, high)) * A * log pi`. MiniMax-M1 (2506.13585), which has no lower bound."""
    ratio_T = ratio(tokens.logprobs_T.detach(), tokens.behaviour_logprobs_T)
    return weighted_policy_gradient(tokens, ratio_T, config.weight_low, config.weight_high)
