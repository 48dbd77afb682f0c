"""From hidden states to a loss in one pass over the head: each block of logits is made once.

A policy loss is a function of the logprobs and entropies of whole trajectories. So as soon as the logits of
some trajectories exist, the gradient of their loss is known, and the gradients of hidden states and head can
be taken from the very same logits. Nothing of the size tokens x vocabulary outlives its block, and nothing
is computed twice; `logprobs.token_logprobs`, which does not know the loss, has to make the logits again.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from dora_rl.model.logprobs import token_logprobs
from dora_rl.model.logprobs_half import float_product

LossOf = Callable[[Tensor, Tensor, slice], Tensor]
"""The summed loss of some rows, a range of whole trajectories, from their logprobs and entropies."""

BLOCK_TOKENS = 8192


def head_loss(
    hidden_PH: Tensor,
    head_VH: Tensor,
    targets_P: Tensor,
    *,
    counts: Sequence[int],
    loss_of: LossOf,
    temperature: float = 1.0,
    is_fused: bool | None = None,
    block_tokens: int = BLOCK_TOKENS,
) -> Tensor:
    """The loss of all rows; `counts` says how many of them each trajectory has.

    Fused where it runs on a GPU in half precision and every trajectory fits a block; otherwise through
    `token_logprobs`, the reference.
    """
    if is_fused is None:
        is_fused = hidden_PH.is_cuda and hidden_PH.dtype == torch.bfloat16
    if not is_fused or max(counts, default=0) > block_tokens or not len(targets_P):
        logprobs = token_logprobs(hidden_PH, head_VH, targets_P, temperature=temperature)
        return loss_of(logprobs.logprobs_T, logprobs.entropy_T, slice(0, len(targets_P)))
    apply: Callable[..., Tensor] = _HeadLoss.apply
    return apply(hidden_PH, head_VH, targets_P, temperature, list(_blocks(counts, block_tokens)), loss_of)


def _blocks(counts: Iterable[int], block_tokens: int) -> Iterable[slice]:
    """Ranges of rows of whole trajectories, as many as fit a block."""
    first = last = 0
    for count in counts:
        if last + count - first > block_tokens:
            yield slice(first, last)
            first = last
        last += count
    yield slice(first, last)


class _HeadLoss(torch.autograd.Function):
    """The loss of all rows as an autograd function: gradients are taken in the forward pass."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden_PH: Tensor,
        head_VH: Tensor,
        targets_P: Tensor,
        temperature: float,
        blocks: list[slice],
        loss_of: LossOf,
    ) -> Tensor:
        from dora_rl.model import vocabulary

        grad_hidden_PH = torch.empty_like(hidden_PH)
        grad_head_VH: Tensor | None = None
        loss = torch.zeros((), device=hidden_PH.device)
        for rows in blocks:
            hidden_BH, targets_B = hidden_PH[rows], targets_P[rows]
            logits_BV = float_product(hidden_BH, head_VH.T)
            logsumexp_B, logprobs_B, entropy_B = vocabulary.statistics(logits_BV, targets_B, temperature)
            part, grad_logprobs_B, grad_entropy_B = _differentiated(loss_of, logprobs_B, entropy_B, rows)
            loss += part
            grad_BV = vocabulary.gradient(
                logits_BV,
                targets_B,
                temperature,
                logsumexp_B=logsumexp_B,
                entropy_B=entropy_B,
                grad_logprobs_B=grad_logprobs_B,
                grad_entropy_B=grad_entropy_B,
                dtype=hidden_PH.dtype,
            )
            torch.mm(grad_BV, head_VH, out=grad_hidden_PH[rows])
            if ctx.needs_input_grad[1]:
                change_VH = float_product(grad_BV.T, hidden_BH)
                grad_head_VH = change_VH if grad_head_VH is None else grad_head_VH.add_(change_VH)
            # Gigabytes each: gone before the next block's are made.
            del logits_BV, grad_BV
        ctx.save_for_backward(grad_hidden_PH, grad_head_VH)
        return loss

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_loss: Tensor) -> tuple[Tensor | None, ...]:
        grad_hidden_PH, grad_head_VH = ctx.saved_tensors
        # In place: they belong to nobody else, and the head's is as large as the head.
        grad_head_VH = None if grad_head_VH is None else grad_head_VH.mul_(grad_loss)
        return grad_hidden_PH.mul_(grad_loss), grad_head_VH, None, None, None, None


def _differentiated(
    loss_of: LossOf, logprobs_B: Tensor, entropy_B: Tensor, rows: slice
) -> tuple[Tensor, Tensor, Tensor]:
    """The loss of a block, and its gradients to logprobs and entropies."""
    with torch.enable_grad():
        inputs = logprobs_B.detach().requires_grad_(), entropy_B.detach().requires_grad_()
        loss = loss_of(*inputs, rows)
        if not loss.requires_grad:
            return loss, torch.zeros_like(logprobs_B), torch.zeros_like(entropy_B)
        grads = torch.autograd.grad(loss, inputs, allow_unused=True, materialize_grads=True)
    return loss.detach(), grads[0], grads[1]
