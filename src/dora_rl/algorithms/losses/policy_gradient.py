"""REINFORCE: no ratio, no trust region; right only for tokens of the policy that is being trained."""

from dora_rl.algorithms.config import PolicyGradientConfig
from dora_rl.algorithms.ratios import nowhere, ratio
from dora_rl.algorithms.tokens import LossTerms, LossTokens


def policy_gradient(tokens: LossTokens, config: PolicyGradientConfig) -> LossTerms:
    """`-A * log pi`. Williams 1992. The ratio is reported, not used."""
    return LossTerms(
        loss_T=-tokens.advantages_T * tokens.logprobs_T,
        ratio_T=ratio(tokens.logprobs_T.detach(), tokens.behaviour_logprobs_T),
        is_clipped_low_T=nowhere(tokens.logprobs_T),
        is_clipped_high_T=nowhere(tokens.logprobs_T),
    )
