"""The loss of some policy tokens: policy loss, KL to a reference, entropy bonus, weighed by token.

Binds the functions of `dora_rl.algorithms` to the tokens of one micro-batch, and feeds the meters on the way.
"""

from torch import Tensor

from dora_rl.algorithms.correction import corrected
from dora_rl.algorithms.regularisers import kl_terms, regularised
from dora_rl.algorithms.tokens import Loss, LossTokens
from dora_rl.core.recipe.algorithm import AlgorithmConfig
from dora_rl.trainer.loss_meters import OWN, LossMeters
from dora_rl.trainer.tensors import PolicyTokens


class Objective:
    """The loss of an algorithm: policy loss, KL, entropy bonus, and their coefficients."""

    def __init__(self, algorithm: AlgorithmConfig, loss: Loss, *, proximal_is_current: bool) -> None:
        self._algorithm = algorithm
        self._loss = loss
        self._proximal_is_current = proximal_is_current

    def loss(self, tokens: PolicyTokens, logprobs_P: Tensor, entropy_P: Tensor, meters: LossMeters) -> Tensor:
        """The loss summed over tokens of whole trajectories, by their relative weights."""
        algorithm = self._algorithm
        proximal_P = tokens.proximal_P
        if proximal_P is None and self._proximal_is_current:
            proximal_P = logprobs_P.detach()
        first = tokens.trajectory_P[:1]
        seen = LossTokens(
            logprobs_T=logprobs_P,
            behaviour_logprobs_T=tokens.behaviour_P,
            advantages_T=tokens.advantages_P,
            trajectory_T=tokens.trajectory_P - first if len(first) else tokens.trajectory_P,
            num_trajectories=max(1, len(logprobs_P)),
            proximal_logprobs_T=proximal_P,
        )
        if algorithm.correction is None or tokens.recomputed_P is None:
            terms = self._loss.function(seen)
        else:
            terms, found = corrected(self._loss, seen, tokens.recomputed_P, algorithm.correction)
            meters.add(tokens, {"corrected": found.is_out_T})
        meters.add_terms(tokens, logprobs_P.detach(), entropy_P.detach(), terms)
        meters.add(tokens, {f"{OWN}{name}": values_P for name, values_P in terms.metrics.items()})
        kl_P, coefficient = None, 0.0
        if algorithm.kl is not None and tokens.reference_P is not None:
            kl_P = kl_terms(logprobs_P, tokens.reference_P, algorithm.kl.estimator)
            coefficient = algorithm.kl.coefficient if algorithm.kl.into == "loss" else 0.0
            meters.add(tokens, {"kl": kl_P})
        loss_P = regularised(
            terms.loss_T,
            entropy_T=entropy_P,
            entropy_bonus=algorithm.entropy_bonus,
            kl_T=kl_P if coefficient else None,
            kl_coefficient=coefficient,
        )
        meters.add(tokens, {"loss": loss_P * tokens.weights_P})
        return (loss_P * tokens.weights_P).sum()
