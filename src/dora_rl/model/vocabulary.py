"""Row-wise passes over a block of logits, each reading it once: for GPUs.

`statistics` gives the logprob of a target and the entropy of its row; `gradient` turns the gradients of those
two into that of the logits, in the dtype of the products that follow. Float32 in, float32 arithmetic.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

_BLOCK_WORDS = 4096
_NUM_WARPS = 8


def statistics(logits_BV: Tensor, targets_B: Tensor, temperature: float) -> tuple[Tensor, Tensor, Tensor]:
    """The logsumexp at the temperature, the target's logprob and the entropy of each row; float32."""
    num_rows, num_words = logits_BV.shape
    logsumexp_B, logprobs_B, entropy_B = torch.empty(3, num_rows, device=logits_BV.device)
    _statistics[(num_rows,)](
        logits_BV, targets_B, logsumexp_B, logprobs_B, entropy_B, logits_BV.stride(0), 1 / temperature,
        NUM_WORDS=num_words, BLOCK=_BLOCK_WORDS, num_warps=_NUM_WARPS,
    )  # fmt: skip
    return logsumexp_B, logprobs_B, entropy_B


def gradient(
    logits_BV: Tensor,
    targets_B: Tensor,
    temperature: float,
    *,
    logsumexp_B: Tensor,
    entropy_B: Tensor,
    grad_logprobs_B: Tensor,
    grad_entropy_B: Tensor,
    dtype: torch.dtype,
) -> Tensor:
    """The gradient of the logits before the temperature, given those of logprobs and entropies."""
    num_rows, num_words = logits_BV.shape
    grad_BV = torch.empty_like(logits_BV, dtype=dtype)
    _gradient[(num_rows, triton.cdiv(num_words, _BLOCK_WORDS))](
        logits_BV, grad_BV, targets_B, logsumexp_B, entropy_B, grad_logprobs_B.contiguous(),
        grad_entropy_B.contiguous(), logits_BV.stride(0), 1 / temperature,
        NUM_WORDS=num_words, BLOCK=_BLOCK_WORDS, num_warps=_NUM_WARPS,
    )  # fmt: skip
    return grad_BV


@triton.jit  # type: ignore[untyped-decorator]
def _statistics(  # type: ignore[no-untyped-def]
    logits, targets, logsumexps, logprobs, entropies, stride, sharpness,
    NUM_WORDS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Maximum, mass and moment of one row, kept by lane and joined at the end."""
    row = tl.program_id(0).to(tl.int64)
    # The lowest numbers are finite: the difference of two infinities is none.
    peak = tl.full((BLOCK,), -1e30, tl.float32)
    mass = tl.zeros((BLOCK,), tl.float32)
    moment = tl.zeros((BLOCK,), tl.float32)
    for first in range(0, NUM_WORDS, BLOCK):
        words = first + tl.arange(0, BLOCK)
        is_word = words < NUM_WORDS
        scores = tl.load(logits + row * stride + words, mask=is_word, other=-1e30) * sharpness
        scores = tl.where(is_word, scores, -1e30)
        new_peak = tl.maximum(peak, scores)
        drop, below = peak - new_peak, scores - new_peak
        share = tl.where(is_word, tl.exp(below), 0.0)
        shrink = tl.exp(drop)
        moment = (moment + drop * mass) * shrink + share * below
        mass = mass * shrink + share
        peak = new_peak
    top = tl.max(peak, axis=0)
    drop = peak - top
    shrink = tl.exp(drop)
    total = tl.sum(mass * shrink, axis=0)
    moment_total = tl.sum((moment + drop * mass) * shrink, axis=0)
    log_total = tl.log(total)
    picked = tl.load(logits + row * stride + tl.load(targets + row)) * sharpness
    tl.store(logsumexps + row, top + log_total)
    tl.store(logprobs + row, picked - (top + log_total))
    tl.store(entropies + row, log_total - moment_total / total)


@triton.jit  # type: ignore[untyped-decorator]
def _gradient(  # type: ignore[no-untyped-def]
    logits, grads, targets, logsumexps, entropies, grad_logprobs, grad_entropies, stride, sharpness,
    NUM_WORDS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The gradient of one row, through `log p[target]` and through the entropy."""
    row = tl.program_id(0).to(tl.int64)
    words = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    is_word = words < NUM_WORDS
    scores = tl.load(logits + row * stride + words, mask=is_word, other=0.0) * sharpness
    logprob = scores - tl.load(logsumexps + row)
    own, around = tl.load(grad_logprobs + row), tl.load(grad_entropies + row)
    grad = -tl.exp(logprob) * (own + around * (logprob + tl.load(entropies + row)))
    grad += tl.where(words == tl.load(targets + row), own, 0.0)
    tl.store(grads + row * stride + words, (grad * sharpness).to(grads.dtype.element_ty), mask=is_word)
