"""A change of weights, as an engine takes it: the one record that weights and rollout share."""

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterChange:
    """New values of one parameter, at flat indices."""

    indices_N: Tensor
    values_N: Tensor


Delta = Mapping[str, ParameterChange]
"""A change of weights by the Decoder's parameter names; parameters not named stay as they are."""
