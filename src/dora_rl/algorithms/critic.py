"""The critic's loss."""

import torch
from torch import Tensor


def value_loss(
    values_T: Tensor, returns_T: Tensor, old_values_T: Tensor | None = None, clip: float | None = None
) -> Tensor:
    """Per token `(V - return)^2 / 2`; with a clip, or that of V held within `clip` of the old if larger.

    The clip: Schulman et al. 2017's implementation; Engstrom et al. 2020 (2005.12729).
    """
    loss_T = (values_T - returns_T).square() / 2
    if clip is None:
        return loss_T
    assert old_values_T is not None, "a clip needs the old values"
    held_T = old_values_T + (values_T - old_values_T).clamp(-clip, clip)
    return torch.maximum(loss_T, (held_T - returns_T).square() / 2)
