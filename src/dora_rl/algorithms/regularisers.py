"""KL to a reference policy, the entropy bonus, and what it costs a trajectory to reach the length cap.

Terms of a token's loss, or of a trajectory's reward. `log_ratio = log pi - log pi_reference` throughout;
estimators: Schulman 2020 ("Approximating KL divergence"). Masking a cut trajectory leaves its tokens out of
the loss and counts it under a label; its reward still counts in its group. The soft penalty lowers the reward
before the cap is reached, so that length is learned and not only punished.
"""

from typing import Literal

from torch import Tensor

from dora_rl.algorithms.tokens import MAX_LOG_RATIO, sums_N
from dora_rl.core.recipe.algorithm import OverlongConfig


def kl_terms(
    logprobs_T: Tensor, reference_logprobs_T: Tensor, estimator: Literal["k1", "k2", "k3"]
) -> Tensor:
    """Per token: k1 `log_ratio`; k2 `log_ratio^2 / 2`; k3 `exp(-log_ratio) - 1 + log_ratio`.

    All estimate KL(pi | reference) on tokens of pi, k2 with a bias. As a loss, k2 has the gradient of that
    KL, k3 the one of KL(reference | pi), k1 none in expectation: Tang and Munos 2025 (2506.09477).
    """
    log_ratio_T = logprobs_T - reference_logprobs_T.detach()
    if estimator == "k1":
        return log_ratio_T
    if estimator == "k2":
        return log_ratio_T.square() / 2
    # Held on one side only: for the other the exponential vanishes, and both terms must be held together
    # or the rest of the gradient would point away from the reference.
    held_T = log_ratio_T.clamp(min=-MAX_LOG_RATIO)
    return (-held_T).exp() - 1 + held_T


def rewards_less_kl(rewards_N: Tensor, kl_T: Tensor, trajectory_T: Tensor, *, coefficient: float) -> Tensor:
    """`reward - coefficient * sum of the trajectory's terms`, without gradient.

    Ziegler et al. 2019 (1909.08593). The terms are those of the recorded logprobs: what the
    trajectory cost the policy that made it.
    """
    return rewards_N - coefficient * sums_N(kl_T.detach(), trajectory_T, len(rewards_N))


def regularised(
    loss_T: Tensor, *, entropy_T: Tensor, entropy_bonus: float, kl_T: Tensor | None, kl_coefficient: float
) -> Tensor:
    """`loss + coefficient * KL - bonus * entropy`, per token."""
    if kl_T is not None:
        loss_T = loss_T + kl_coefficient * kl_T
    return loss_T - entropy_bonus * entropy_T if entropy_bonus else loss_T


MASKED_OVERLONG = "masked: overlong"
"""The label under which a trajectory masked because of its length is counted."""


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
