"""Importance ratios out of logprobs, in log space, finite whatever the logprobs are."""

import torch
from torch import Tensor

MAX_LOG_RATIO = 20.0
"""`exp(20)` is 5e8. A ratio beyond is out of every clip range, and its exponential must not overflow."""


def ratio(numerator_logprobs: Tensor, denominator_logprobs: Tensor) -> Tensor:
    """`exp(numerator - denominator)`, held within `exp(±20)`; no gradient flows where it is held."""
    return bounded_exp(numerator_logprobs - denominator_logprobs)


def bounded_exp(log_ratio: Tensor) -> Tensor:
    """`exp`, its argument held within ±20."""
    return log_ratio.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()


def nowhere(like: Tensor) -> Tensor:
    """False for every token: the flags of a bound that a loss does not have."""
    return torch.zeros_like(like, dtype=torch.bool)
