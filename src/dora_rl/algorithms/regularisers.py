"""KL to a reference policy and the entropy bonus: terms of a token's loss, or of a trajectory's reward.

`log_ratio = log pi - log pi_reference` throughout. Estimators: Schulman 2020 ("Approximating KL divergence").
"""

from typing import Literal

from torch import Tensor

from dora_rl.algorithms.ratios import MAX_LOG_RATIO
from dora_rl.algorithms.segments import sums_N


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
