"""The work between two attentions as compiled functions: norms, rotation and activation in one pass each.

Two functions of plain tensors, so that one compilation serves all layers and, with the number of tokens left
open, all batches. They compute what the modules of `decoder` compute; a fused pass skips the rounding between
its steps.
"""

from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor
from torch.nn import functional

from dora_rl.model.experts import gated
from dora_rl.model.rope import Rotation, rotate

Heads = tuple[Tensor, Tensor, Tensor]


def project(
    hidden_TH: Tensor,
    rotation: Rotation,
    norm: Tensor,
    qkv: Tensor,
    bias: Tensor | None,
    head_norms: tuple[Tensor, Tensor] | None,
    sizes: tuple[int, int, int],
    head_dim: int,
    eps: float,
) -> Heads:
    """Rotated queries and keys, and values, out of the residual stream."""
    normed_TH = functional.rms_norm(hidden_TH, norm.shape, norm, eps)
    parts = functional.linear(normed_TH, qkv, bias).split(sizes, -1)
    q_THD, k_TKD, v_TKD = (part.unflatten(-1, (-1, head_dim)) for part in parts)
    if head_norms is not None:
        q_THD = functional.rms_norm(q_THD, (head_dim,), head_norms[0], eps)
        k_TKD = functional.rms_norm(k_TKD, (head_dim,), head_norms[1], eps)
    return rotate(q_THD, rotation), rotate(k_TKD, rotation), v_TKD


def absorb(
    hidden_TH: Tensor,
    mixed_THD: Tensor,
    out: Tensor,
    bias: Tensor | None,
    norm: Tensor,
    gate_up: Tensor,
    down: Tensor,
    eps: float,
) -> Tensor:
    """The residual stream after what attention read and after the MLP."""
    hidden_TH = hidden_TH + functional.linear(mixed_THD.flatten(1), out, bias)
    normed_TH = functional.rms_norm(hidden_TH, norm.shape, norm, eps)
    return hidden_TH + functional.linear(gated(functional.linear(normed_TH, gate_up)), down)


@cache
def compiled() -> tuple[Callable[..., Heads], Callable[..., Tensor]]:
    """`project` and `absorb`, compiled at their first call.

    Not dynamic but for what is marked: a second model in the process must not make the widths of both open.
    """
    return torch.compile(project, dynamic=False), torch.compile(absorb, dynamic=False)


def with_open_length(*tensors_T: Tensor) -> None:
    """Tell the compiler that the number of tokens will vary, before it finds out by compiling again."""
    for tensor in tensors_T:
        torch._dynamo.maybe_mark_dynamic(tensor, 0)
