"""The attention seam of transformers' models: their layers call `seam`, which asks an object of ours.

Each call brings the rules of its layer: scale, window, cap of the scores, sinks. The object that is handed
to the pass knows sequences and caches, as behind the native decoder's seam; the reference here sees whole
packed sequences. So sequences laid end to end see nothing of each other.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn import functional

from dora_rl.model.attention import SHORT_TOKENS
from dora_rl.model.packed_sequences import filled_up

IMPLEMENTATION = "dora_rl"
"""The name under which transformers knows the seam."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionRules:
    """How one layer attends, besides causally."""

    scale: float
    window: int | None = None
    """How many tokens a token sees, itself among them; None for all before it."""
    softcap: float | None = None
    """Bound that scores are bent towards by a tanh."""
    sinks_H: Tensor | None = None
    """A score for each head that takes mass and has no value."""


class RuledAttention(Protocol):
    """Causal attention of one forward pass, by the rules of each layer."""

    def __call__(
        self, layer: int, q_THD: Tensor, k_TKD: Tensor, v_TKD: Tensor, rules: AttentionRules
    ) -> Tensor:
        """The mixed values `[tokens, heads, head_dim]`."""
        ...


def seam(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    attending: RuledAttention,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """Attend for a layer of transformers: one batch row `[1, heads, tokens, head_dim]` of packed tokens."""
    assert attention_mask is None, "whoever attends knows what is visible"
    rules = AttentionRules(
        scale=query.shape[-1] ** -0.5 if scaling is None else scaling,
        window=sliding_window,
        softcap=softcap,
        sinks_H=s_aux,
    )
    q_THD, k_TKD, v_TKD = (heads[0].transpose(0, 1) for heads in (query, key, value))
    return attending(module.layer_idx, q_THD, k_TKD, v_TKD, rules)[None], None


def register() -> None:
    """Make the seam known to transformers."""
    from transformers import AttentionInterface

    AttentionInterface.register(IMPLEMENTATION, seam)


class PackedRules:
    """Whole sequences laid end to end, each attended to on its own: the reference, with gradients.

    Short ones of about one length go together, filled up behind their end, where no token looks.
    """

    def __init__(self, lengths: Sequence[int]) -> None:
        alike: dict[int, list[int]] = defaultdict(list)
        for place, length in enumerate(lengths):
            alike[length.bit_length() if length <= SHORT_TOKENS else -place].append(place)
        lengths_N = torch.tensor(lengths)
        firsts_N = lengths_N.cumsum(0) - lengths_N
        self._bundles = [filled_up(firsts_N[places], lengths_N[places]) for places in alike.values()]
        rows = [rows_NL[is_there_NL] for rows_NL, is_there_NL in self._bundles]
        self._order_T = torch.cat(rows).argsort()

    def __call__(
        self, layer: int, q_THD: Tensor, k_TKD: Tensor, v_TKD: Tensor, rules: AttentionRules
    ) -> Tensor:
        device, mixed = q_THD.device, []
        for rows_NL, is_there_NL in self._bundles:
            where = rows_NL.to(device)
            q, k, v = (heads[where].transpose(1, 2) for heads in (q_THD, k_TKD, v_TKD))
            positions_L = torch.arange(where.shape[1], device=device)
            mixed_NHLD = attend(q, k, v, positions_L[:, None], rules)
            mixed.append(mixed_NHLD.transpose(1, 2)[is_there_NL.to(device)])
        return torch.cat(mixed)[self._order_T.to(device)]


def attend(
    q_NHLD: Tensor, k_NKCD: Tensor, v_NKCD: Tensor, positions_L1: Tensor, rules: AttentionRules
) -> Tensor:
    """Attention of `N` sequences whose keys are at positions 0 to C - 1, and queries at the given ones.

    `positions_L1` is `[L, 1]`, or `[N, 1, L, 1]` where sequences differ.
    """
    keys_C = torch.arange(k_NKCD.shape[2], device=q_NHLD.device)
    is_visible = keys_C <= positions_L1
    if rules.window is not None and rules.window < k_NKCD.shape[2]:
        is_visible = is_visible & (keys_C > positions_L1 - rules.window)
    if rules.softcap is None and rules.sinks_H is None:
        return functional.scaled_dot_product_attention(
            q_NHLD, k_NKCD, v_NKCD, is_visible, scale=rules.scale, enable_gqa=True
        )
    group = q_NHLD.shape[1] // k_NKCD.shape[1]
    k_NHCD, v_NHCD = (heads.repeat_interleave(group, dim=1) for heads in (k_NKCD, v_NKCD))
    scores = (q_NHLD @ k_NHCD.transpose(2, 3)).float() * rules.scale
    if rules.softcap is not None:
        scores = rules.softcap * torch.tanh(scores / rules.softcap)
    scores = scores.masked_fill(~is_visible, -torch.inf)
    if rules.sinks_H is not None:
        sinks = rules.sinks_H.float().view(1, -1, 1, 1).expand(*scores.shape[:3], 1)
        scores = torch.cat([scores, sinks], dim=-1)
    shares = scores.softmax(dim=-1)[..., : k_NHCD.shape[2]]
    return shares.to(v_NHCD.dtype) @ v_NHCD
