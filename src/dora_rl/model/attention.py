"""The seam between the decoder and whatever holds keys and values.

The decoder knows tokens and positions, not sequences: it hands each layer's queries, keys and values to an
Attention, which alone knows which token may see which, and where older keys are. The reference here sees
whole packed sequences; an engine puts its paged cache behind the same call.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, Self

import torch
from torch import Tensor
from torch.nn import functional

from dora_rl.model.packed_sequences import filled_up

SHORT_TOKENS = 64
"""Length in tokens up to which sequences are attended to in bundles."""


class Attention(Protocol):
    """Causal attention of one forward pass."""

    def __call__(
        self, layer: int, q_THD: Tensor, k_TKD: Tensor, v_TKD: Tensor, window: int | None = None
    ) -> Tensor:
        """The mixed values `[tokens, heads, head_dim]`, given rotated queries and keys.

        T counts the tokens of the pass, H query heads, K key-value heads; query head `h` reads key-value head
        `h // (H / K)`, and scores are scaled by `head_dim ** -0.5`. A token sees the last `window` tokens of
        its sequence, itself among them, or all.
        """
        ...


class PackedAttention:
    """Whole sequences laid end to end, each attended to on its own: the reference, with gradients.

    Short ones of about one length go together, filled up behind their end, where no token looks: a product
    of their size costs less than asking for it.
    """

    def __init__(self, lengths: Sequence[int]) -> None:
        alike: dict[int, list[int]] = defaultdict(list)
        for place, length in enumerate(lengths):
            alike[length.bit_length() if length <= SHORT_TOKENS else -place].append(place)
        lengths_N = torch.tensor(lengths)
        firsts_N = lengths_N.cumsum(0) - lengths_N
        self._bundles = [_Bundle.of(firsts_N[places], lengths_N[places]) for places in alike.values()]
        self._order_T = torch.cat([each.rows_T for each in self._bundles]).argsort()

    def __call__(
        self, layer: int, q_THD: Tensor, k_TKD: Tensor, v_TKD: Tensor, window: int | None = None
    ) -> Tensor:
        mixed = [_attend(bundle, q_THD, k_TKD, v_TKD, window) for bundle in self._bundles]
        return torch.cat(mixed)[self._order_T.to(q_THD.device)]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Bundle:
    """Sequences that are attended to in one product."""

    rows_NL: Tensor
    """Each sequence's tokens, its last one repeated up to the length of the longest."""
    is_there_NL: Tensor

    @classmethod
    def of(cls, firsts_N: Tensor, lengths_N: Tensor) -> Self:
        rows_NL, is_there_NL = filled_up(firsts_N, lengths_N)
        return cls(rows_NL=rows_NL, is_there_NL=is_there_NL)

    @property
    def rows_T(self) -> Tensor:
        """Rows of the real tokens, sequence by sequence."""
        return self.rows_NL[self.is_there_NL]


def _attend(bundle: _Bundle, q_THD: Tensor, k_TKD: Tensor, v_TKD: Tensor, window: int | None) -> Tensor:
    """Attention of one bundle: the mixed values of `bundle.rows_T`."""
    rows_NL = bundle.rows_NL.to(q_THD.device)
    q, k, v = (heads[rows_NL].transpose(1, 2) for heads in (q_THD, k_TKD, v_TKD))
    if window is None or window >= rows_NL.shape[1]:
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    else:
        places_L = torch.arange(rows_NL.shape[1], device=q.device)
        is_visible_LL = is_within(places_L[:, None], places_L, window)
        mixed = functional.scaled_dot_product_attention(q, k, v, is_visible_LL, enable_gqa=True)
    return mixed.transpose(1, 2)[bundle.is_there_NL.to(q_THD.device)]


def is_within(own: Tensor, others: Tensor, window: int) -> Tensor:
    """Whether a token at position `own` sees those at `others`: itself and those before it in its window."""
    return (others <= own) & (others > own - window)
