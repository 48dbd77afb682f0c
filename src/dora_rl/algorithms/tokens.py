"""What a policy loss sees and gives back, and the arithmetic of tokens that losses share.

Tokens of whole trajectories laid end to end; a trajectory may have none. Logprobs are at the sampling
temperature over the full vocabulary, float32 or wider. Ratios are taken in log space, finite whatever the
logprobs are.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class LossTokens:
    """The trained policy tokens of a micro-batch."""

    logprobs_T: Tensor
    """Logprobs under the policy being trained; they carry the gradient."""
    behaviour_logprobs_T: Tensor
    """Logprobs recorded when the tokens were sampled, under the version that generated them."""
    advantages_T: Tensor
    trajectory_T: Tensor
    """The trajectory of each token, 0 .. num_trajectories - 1 (int64)."""
    num_trajectories: int
    proximal_logprobs_T: Tensor | None = None
    """Logprobs under the policy at the start of the train step; only `decoupled_ppo` needs them."""

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
    """The loss of each token, with gradient."""
    ratio_T: Tensor
    """The importance ratio of the loss, detached; of the whole trajectory where it is sequence-level."""
    is_clipped_low_T: Tensor
    """Whether a lower bound on the ratio took effect on each token (bool)."""
    is_clipped_high_T: Tensor
    """Whether an upper bound on the ratio took effect on each token (bool)."""
    metrics: Mapping[str, Tensor] = field(default_factory=dict)
    """Further metrics that a loss reports of each token, by its own names; detached."""


class LossFunction(Protocol):
    """A policy loss with its configuration bound: tokens of whole trajectories to one term each."""

    def __call__(self, tokens: LossTokens) -> LossTerms:
        """The loss terms of each of these tokens."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """A policy loss as a trainer uses it."""

    name: str
    """The name of the loss in errors."""
    function: LossFunction
    needs_proximal: bool
    """Whether the policy's logprobs at the start of the train step are needed."""
    metrics: tuple[str, ...] = ()
    """The names of metrics that the loss reports of its own."""
    is_users: bool = False
    """Whether the loss is the user's own: a result of it that is no number is an error."""


MAX_LOG_RATIO = 20.0
"""Bound on log ratios: `exp(20)` is 5e8, out of every clip range, and does not overflow."""


def ratio(numerator_logprobs: Tensor, denominator_logprobs: Tensor) -> Tensor:
    """`exp(numerator - denominator)`, held within `exp(±20)`; no gradient flows where it is held."""
    return bounded_exp(numerator_logprobs - denominator_logprobs)


def bounded_exp(log_ratio: Tensor) -> Tensor:
    """The exponential of an argument held within ±20."""
    return log_ratio.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()


def nowhere(like: Tensor) -> Tensor:
    """False for every token: the flags of a bound that a loss does not have."""
    return torch.zeros_like(like, dtype=torch.bool)


def sums_N(values_T: Tensor, trajectory_T: Tensor, num_trajectories: int) -> Tensor:
    """Sum of the values of each trajectory; 0 where it has no tokens."""
    # In float64: a long trajectory's small log ratios would lose their digits one by one, and the order
    # in which a GPU adds them would show.
    sums = torch.zeros(num_trajectories, dtype=torch.float64, device=values_T.device)
    return sums.index_add(0, trajectory_T, values_T.double()).to(values_T.dtype)


def lengths_N(trajectory_T: Tensor, num_trajectories: int) -> Tensor:
    """Number of tokens of each trajectory."""
    # Not bincount, which looks for the largest on the host, who then waits for the device.
    counts = torch.zeros(num_trajectories, dtype=torch.int64, device=trajectory_T.device)
    return counts.index_add(0, trajectory_T, torch.ones_like(trajectory_T))


def sums_T(values_T: Tensor, trajectory_T: Tensor, num_trajectories: int) -> Tensor:
    """For each token, the sum over its trajectory."""
    return sums_N(values_T, trajectory_T, num_trajectories)[trajectory_T]


def means_T(values_T: Tensor, trajectory_T: Tensor, num_trajectories: int) -> Tensor:
    """For each token, the mean over its trajectory."""
    return (
        sums_T(values_T, trajectory_T, num_trajectories)
        / lengths_N(trajectory_T, num_trajectories)[trajectory_T]
    )
