"""The seam between the decoder and whatever holds keys and values.

The decoder knows tokens and positions, not sequences: it hands each layer's queries, keys and values to an
Attention, which alone knows which token may see which, and where older keys are. The reference here sees
whole packed sequences; an engine puts its paged cache behind the same call.
"""

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional


class Attention(Protocol):
    """Causal attention of one forward pass."""

    def __call__(self, layer: int, q_THD: Tensor, k_TKD: Tensor, v_TKD: Tensor) -> Tensor:
        """The mixed values `[tokens, heads, head_dim]`, given rotated queries and keys.

        T counts the tokens of the pass, H query heads, K key-value heads; query head `h` reads key-value head
        `h // (H / K)`, and scores are scaled by `head_dim ** -0.5`.
        """
        ...


class PackedAttention:
    """Whole sequences laid end to end, each attended to on its own: the reference, with gradients."""

    def __init__(self, lengths: Sequence[int]) -> None:
        self._lengths = list(lengths)

    def __call__(self, layer: int, q_THD: Tensor, k_TKD: Tensor, v_TKD: Tensor) -> Tensor:
        spans = zip(*(heads.split(self._lengths) for heads in (q_THD, k_TKD, v_TKD)), strict=True)
        return torch.cat([_attend(q, k, v) for q, k, v in spans])


def _attend(q_THD: Tensor, k_TKD: Tensor, v_TKD: Tensor) -> Tensor:
    q, k, v = (heads.transpose(0, 1).unsqueeze(0) for heads in (q_THD, k_TKD, v_TKD))
    mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    return mixed.squeeze(0).transpose(0, 1)
