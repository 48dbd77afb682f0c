"""The number a micro-batch adds to the loss of its batch: policy loss, correction, KL and entropy together.

The one place that knows how they combine: the correction weighs the policy loss alone, and KL and entropy are
averaged over tokens in the same way as the loss.
"""

from dataclasses import dataclass, replace

from torch import Tensor

from dora_rl.algorithms.config import AlgorithmConfig
from dora_rl.algorithms.correction import Correction, correction
from dora_rl.algorithms.kl import kl_terms
from dora_rl.algorithms.losses import loss_of
from dora_rl.algorithms.tokens import LossTerms, LossTokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Objective:
    """A micro-batch's share of the loss, and what it was made of."""

    loss: Tensor
    """A scalar with gradient; the shares of all micro-batches add up to the batch's loss."""
    terms: LossTerms
    """Of the policy loss, before correction, KL and entropy."""
    kl_T: Tensor | None
    """To the reference, where there is one, detached."""
    correction: Correction | None


def objective(
    config: AlgorithmConfig,
    tokens: LossTokens,
    weights_T: Tensor,
    *,
    entropy_T: Tensor | None = None,
    reference_logprobs_T: Tensor | None = None,
    trainer_logprobs_T: Tensor | None = None,
) -> Objective:
    """`sum(weights * (correction * policy loss + coefficient * KL - bonus * entropy))`.

    `weights_T` are an aggregation's. `entropy_T` (with gradient) is asked for by an entropy bonus,
    `reference_logprobs_T` by a KL in the loss, `trainer_logprobs_T` by a correction: the trainer's logprobs
    under the version that generated, which then stand for the behaviour policy in the loss.
    """
    factors = _correction(config, tokens, trainer_logprobs_T)
    if factors is not None and trainer_logprobs_T is not None:
        tokens = replace(tokens, behaviour_logprobs_T=trainer_logprobs_T.detach())
    terms = loss_of(config.loss)(tokens)
    loss_T = terms.loss_T if factors is None else terms.loss_T * factors.weights_T
    kl_T = _kl(config, tokens, reference_logprobs_T)
    if kl_T is not None and config.kl is not None:
        loss_T = loss_T + config.kl.coefficient * kl_T
    if config.entropy_bonus:
        assert entropy_T is not None, "an entropy bonus needs entropy_T"
        loss_T = loss_T - config.entropy_bonus * entropy_T
    return Objective(
        loss=(loss_T * weights_T).sum(),
        terms=terms,
        kl_T=None if kl_T is None else kl_T.detach(),
        correction=factors,
    )


def _correction(
    config: AlgorithmConfig, tokens: LossTokens, trainer_logprobs_T: Tensor | None
) -> Correction | None:
    if config.correction is None:
        return None
    assert trainer_logprobs_T is not None, "a correction needs trainer_logprobs_T"
    return correction(
        tokens.behaviour_logprobs_T,
        trainer_logprobs_T,
        tokens.trajectory_T,
        tokens.num_trajectories,
        config.correction,
    )


def _kl(config: AlgorithmConfig, tokens: LossTokens, reference_logprobs_T: Tensor | None) -> Tensor | None:
    if config.kl is None or config.kl.into == "reward":
        return None
    assert reference_logprobs_T is not None, "a KL in the loss needs reference_logprobs_T"
    return kl_terms(tokens.logprobs_T, reference_logprobs_T, config.kl.estimator)
