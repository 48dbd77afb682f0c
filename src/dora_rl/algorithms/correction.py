"""Importance correction between engine and trainer, for any loss.

The same weights give two sets of logprobs: the engine's, from its kernels, and the trainer's. The tokens came
from the engine, so `trainer / engine` is a weight they are owed. Both must be of the version that generated:
a difference of versions is staleness, and that is the loss's ratio to handle.

With a correction on, the loss's ratio is taken to the trainer's logprobs of that version, so that ratio times
weight is policy over engine and nothing is counted twice.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from dora_rl.algorithms.tokens import Loss, LossTerms, LossTokens, bounded_exp, means_T, sums_T
from dora_rl.core.recipe.algorithm import CorrectionConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class Correction:
    """Importance weights of tokens between engine and trainer, detached."""

    weights_T: Tensor
    is_out_T: Tensor
    """Whether each token's weight was out of bounds (bool)."""

    @property
    def share_out(self) -> float:
        """Share of the tokens whose weight was truncated or masked."""
        return self.is_out_T.float().mean().item() if len(self.is_out_T) else 0.0


def correction(
    engine_logprobs_T: Tensor,
    trainer_logprobs_T: Tensor,
    trajectory_T: Tensor,
    num_trajectories: int,
    config: CorrectionConfig,
) -> Correction:
    """`w = trainer / engine`, held within [low, high] (`truncated`) or 0 outside it (`masked`).

    Truncated, per token: Yao et al. 2025, "Your efficient RL framework secretly brings you off-policy RL
    training". Masked, per token: IcePop in Ring-1T (2510.18855). Per trajectory: Liu et al. 2025, "When speed
    kills stability".
    """
    log_ratio_T = trainer_logprobs_T.detach() - engine_logprobs_T.detach()
    if config.level == "sequence":
        log_ratio_T = sums_T(log_ratio_T, trajectory_T, num_trajectories)
    elif config.level == "geometric":
        log_ratio_T = means_T(log_ratio_T, trajectory_T, num_trajectories)
    ratio_T = bounded_exp(log_ratio_T)
    is_out_T = (ratio_T < config.low) | (ratio_T > config.high)
    if config.treatment == "masked":
        return Correction(weights_T=torch.where(is_out_T, 0.0, ratio_T), is_out_T=is_out_T)
    return Correction(weights_T=ratio_T.clamp(config.low, config.high), is_out_T=is_out_T)


def corrected(
    loss: Loss, tokens: LossTokens, trainer_logprobs_T: Tensor, config: CorrectionConfig
) -> tuple[LossTerms, Correction]:
    """Any loss with the correction as a factor, of tokens whose behaviour logprobs are the engine's.

    `trainer_logprobs_T` are the trainer's under the version that generated; they stand for the behaviour
    policy in the loss.
    """
    found = correction(
        tokens.behaviour_logprobs_T, trainer_logprobs_T, tokens.trajectory_T, tokens.num_trajectories, config
    )
    terms = loss.function(replace(tokens, behaviour_logprobs_T=trainer_logprobs_T.detach()))
    return replace(terms, loss_T=terms.loss_T * found.weights_T), found
