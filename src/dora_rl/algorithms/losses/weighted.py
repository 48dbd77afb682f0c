"""REINFORCE with a weight that carries no gradient: what CISPO, TIS and TOPR have in common."""

from torch import Tensor

from dora_rl.algorithms.tokens import LossTerms, LossTokens


def weighted_policy_gradient(tokens: LossTokens, ratio_T: Tensor, low: float, high: float) -> LossTerms:
    """`-sg(clip(r, low, high)) * A * log pi`, of a detached ratio."""
    weight_T = ratio_T.clamp(low, high)
    return LossTerms(
        loss_T=-weight_T * tokens.advantages_T * tokens.logprobs_T,
        ratio_T=ratio_T,
        is_clipped_low_T=ratio_T < low,
        is_clipped_high_T=ratio_T > high,
    )
