"""What a policy loss sees and what it gives back.

Tokens of whole trajectories laid end to end; a trajectory may have none. Logprobs are at the sampling
temperature over the full vocabulary, float32 or wider.
"""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class LossTokens:
    """The trained policy tokens of a micro-batch."""

    logprobs_T: Tensor
    """Under the policy being trained; carries the gradient."""
    behaviour_logprobs_T: Tensor
    """Recorded when the token was sampled, under the version that generated it."""
    advantages_T: Tensor
    trajectory_T: Tensor
    """Which trajectory, 0 .. num_trajectories - 1, a token is of (int64)."""
    num_trajectories: int
    proximal_logprobs_T: Tensor | None = None
    """Under the policy at the start of the train step; only `decoupled_ppo` asks for it."""

    def __post_init__(self) -> None:
        shape = self.logprobs_T.shape
        assert len(shape) == 1, f"packed tokens have one axis, not {tuple(shape)}"
        for name in ("behaviour_logprobs_T", "advantages_T", "trajectory_T", "proximal_logprobs_T"):
            value = getattr(self, name)
            assert value is None or value.shape == shape, f"{name} {tuple(value.shape)}, not {tuple(shape)}"
        assert self.trajectory_T.dtype == torch.int64, f"trajectory_T is {self.trajectory_T.dtype}"


@dataclass(frozen=True, slots=True, kw_only=True)
class LossTerms:
    """One number per token. `sum(loss_T * weights_T)` with the weights of an aggregation is the loss."""

    loss_T: Tensor
    """With gradient."""
    ratio_T: Tensor
    """The importance ratio of the loss, detached; of the whole trajectory where it is sequence-level."""
    is_clipped_low_T: Tensor
    """Where a lower bound on the ratio took effect (bool)."""
    is_clipped_high_T: Tensor
    """Where an upper bound on the ratio took effect (bool)."""


class Loss(Protocol):
    """A policy loss with its configuration bound."""

    def __call__(self, tokens: LossTokens) -> LossTerms: ...
