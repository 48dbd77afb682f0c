"""`token_logprobs` on a GPU in half precision: products of bfloat16 operands, summed and kept in float32.

A product of two bfloat16 numbers is exact in float32, so this is the reference up to the order of summation.
A block spans the whole vocabulary, so each row is done when its block is.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

BLOCK_TOKENS = 8192


class HalfPrecisionLogprobs(torch.autograd.Function):
    """Logprobs of targets and entropies, the logits made again in the backward pass."""

    @staticmethod
    def forward(
        ctx: Any, hidden_TH: Tensor, head_VH: Tensor, targets_T: Tensor, temperature: float
    ) -> tuple[Tensor, Tensor]:
        from dora_rl.model import vocabulary

        logsumexp_T, logprobs_T, entropy_T = torch.empty(3, len(targets_T), device=hidden_TH.device)
        for rows in _blocks(len(targets_T)):
            logits = float_product(hidden_TH[rows], head_VH.T)
            found = vocabulary.statistics(logits, targets_T[rows], temperature)
            logsumexp_T[rows], logprobs_T[rows], entropy_T[rows] = found
            del logits
        ctx.save_for_backward(hidden_TH, head_VH, targets_T, logsumexp_T, entropy_T)
        ctx.temperature = temperature
        return logprobs_T, entropy_T

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_logprobs_T: Tensor, grad_entropy_T: Tensor) -> tuple[Tensor | None, ...]:
        from dora_rl.model import vocabulary

        hidden_TH, head_VH, targets_T, logsumexp_T, entropy_T = ctx.saved_tensors
        grad_hidden_TH = torch.empty_like(hidden_TH)
        grad_head_VH = torch.zeros_like(head_VH, dtype=torch.float32) if ctx.needs_input_grad[1] else None
        for rows in _blocks(len(targets_T)):
            grad = vocabulary.gradient(
                float_product(hidden_TH[rows], head_VH.T),
                targets_T[rows],
                ctx.temperature,
                logsumexp_B=logsumexp_T[rows],
                entropy_B=entropy_T[rows],
                grad_logprobs_B=grad_logprobs_T[rows],
                grad_entropy_B=grad_entropy_T[rows],
                dtype=hidden_TH.dtype,
            )
            torch.mm(grad, head_VH, out=grad_hidden_TH[rows])
            if grad_head_VH is not None:
                grad_head_VH += float_product(grad.T, hidden_TH[rows])
            del grad
        return grad_hidden_TH, grad_head_VH, None, None


def _blocks(num_tokens: int) -> Iterator[slice]:
    for first in range(0, num_tokens, BLOCK_TOKENS):
        yield slice(first, min(first + BLOCK_TOKENS, num_tokens))


def float_product(left: Tensor, right: Tensor) -> Tensor:
    """A product in float32 of operands in half precision, which a GPU multiplies as they are."""
    if left.is_cuda and left.dtype != torch.float32:
        return torch.mm(left, right, out_dtype=torch.float32)
    return left.float() @ right.float()
