"""Log-probabilities of given tokens and the entropy around them, without a tokens x vocabulary matrix.

The head is applied block by block, a few thousand tokens by a few thousand words, in float32. Forward keeps
four numbers a token, updated as each block passes; backward computes the blocks again. Only the gradient of
the head has the size of the head. On a GPU in bfloat16 the same is done by `logprobs_half`.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from dora_rl.model.logprobs_half import HalfPrecisionLogprobs

BLOCK_TOKENS = 2048
BLOCK_WORDS = 8192


class TokenLogprobs(NamedTuple):
    """Logprob and entropy of each token, float32, with gradients to the hidden states and the head."""

    logprobs_T: Tensor
    entropy_T: Tensor


def token_logprobs(
    hidden_TH: Tensor,
    head_VH: Tensor,
    targets_T: Tensor,
    *,
    temperature: float = 1.0,
    block_tokens: int = BLOCK_TOKENS,
    block_words: int = BLOCK_WORDS,
) -> TokenLogprobs:
    """Logprobs of `targets_T` under `softmax(hidden @ head.T / temperature)`, and its entropy."""
    assert 0 < temperature < math.inf, f"temperature {temperature}"
    if hidden_TH.is_cuda and hidden_TH.dtype == head_VH.dtype == torch.bfloat16:
        half: Callable[..., tuple[Tensor, Tensor]] = HalfPrecisionLogprobs.apply
        return TokenLogprobs(*half(hidden_TH, head_VH, targets_T, temperature))
    blocks = _Blocks(num_tokens=block_tokens, num_words=block_words)
    apply: Callable[..., tuple[Tensor, Tensor]] = _TokenLogprobs.apply
    return TokenLogprobs(*apply(hidden_TH, head_VH, targets_T, temperature, blocks))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Blocks:
    """How much of the logits matrix exists at a time."""

    num_tokens: int
    num_words: int

    def of_words(self, head_VH: Tensor) -> Iterator[tuple[slice, Tensor]]:
        for first in range(0, len(head_VH), self.num_words):
            span = slice(first, min(first + self.num_words, len(head_VH)))
            yield span, head_VH[span].float()

    def of_tokens(self, hidden_TH: Tensor) -> Iterator[tuple[slice, Tensor]]:
        for first in range(0, len(hidden_TH), self.num_tokens):
            span = slice(first, min(first + self.num_tokens, len(hidden_TH)))
            yield span, hidden_TH[span].float()


class _TokenLogprobs(torch.autograd.Function):
    """Logprobs and entropies as an autograd function that computes the logits again in the backward pass."""

    @staticmethod
    def forward(
        ctx: Any, hidden_TH: Tensor, head_VH: Tensor, targets_T: Tensor, temperature: float, blocks: _Blocks
    ) -> tuple[Tensor, Tensor]:
        running = _Running(len(hidden_TH), hidden_TH.device)
        for words, head in blocks.of_words(head_VH):
            for tokens, hidden in blocks.of_tokens(hidden_TH):
                logits = (hidden @ head.T).div_(temperature)
                running.absorb(tokens, logits, targets_T[tokens] - words.start)
        ctx.save_for_backward(hidden_TH, head_VH, targets_T, running.logsumexp_T, running.entropy_T)
        ctx.temperature, ctx.blocks = temperature, blocks
        return running.picked_T - running.logsumexp_T, running.entropy_T

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_logprobs_T: Tensor, grad_entropy_T: Tensor) -> tuple[Tensor | None, ...]:
        hidden_TH, head_VH, targets_T, logsumexp_T, entropy_T = ctx.saved_tensors
        grad_hidden_TH = torch.zeros_like(hidden_TH, dtype=torch.float32)
        grad_head_VH = torch.empty_like(head_VH) if ctx.needs_input_grad[1] else None
        for words, head in ctx.blocks.of_words(head_VH):
            grad_head = torch.zeros_like(head)
            for tokens, hidden in ctx.blocks.of_tokens(hidden_TH):
                logprobs = (hidden @ head.T).div_(ctx.temperature).sub_(logsumexp_T[tokens, None])
                grad = _grad_logits(
                    logprobs,
                    targets_T[tokens] - words.start,
                    grad_logprobs_T[tokens, None],
                    grad_entropy_T[tokens, None],
                    entropy_T[tokens, None],
                ).div_(ctx.temperature)
                grad_hidden_TH[tokens].addmm_(grad, head)
                if grad_head_VH is not None:
                    grad_head.addmm_(grad.T, hidden)
            if grad_head_VH is not None:
                grad_head_VH[words] = grad_head
        return grad_hidden_TH.to(hidden_TH.dtype), grad_head_VH, None, None, None


class _Running:
    """Maximum, mass, moment and the target's logit of each token, over the words seen so far.

    Mass is the sum of `e = exp(logit - peak)` and moment that of `e * (logit - peak)`: relative to the peak,
    so that neither overflows and the entropy is no difference of large numbers.
    """

    def __init__(self, num_tokens: int, device: torch.device) -> None:
        # The lowest finite number, not -inf: its product with an empty mass must be zero.
        self._peak_T = torch.full((num_tokens,), torch.finfo(torch.float32).min, device=device)
        self._mass_T = torch.zeros(num_tokens, device=device)
        self._moment_T = torch.zeros(num_tokens, device=device)
        self.picked_T = torch.zeros(num_tokens, device=device)

    def absorb(self, tokens: slice, logits: Tensor, targets: Tensor) -> None:
        """Take in one block of logits; a target outside it is one of another block's words."""
        peak, mass = self._peak_T[tokens], self._mass_T[tokens]
        new_peak = torch.maximum(peak, logits.amax(dim=1))
        drop, logits_below_peak = peak - new_peak, logits - new_peak[:, None]
        shares = logits_below_peak.exp()
        moment = (self._moment_T[tokens] + drop * mass) * drop.exp()
        self._moment_T[tokens] = moment + (shares * logits_below_peak).sum(dim=1)
        self._mass_T[tokens] = mass * drop.exp() + shares.sum(dim=1)
        self._peak_T[tokens] = new_peak
        index, is_inside = _column(targets, logits)
        self.picked_T[tokens] += logits.gather(1, index).squeeze(1) * is_inside

    @property
    def logsumexp_T(self) -> Tensor:
        return self._peak_T + self._mass_T.log()

    @property
    def entropy_T(self) -> Tensor:
        return self._mass_T.log() - self._moment_T / self._mass_T


def _grad_logits(
    logprobs: Tensor, targets: Tensor, grad_logprobs: Tensor, grad_entropy: Tensor, entropy: Tensor
) -> Tensor:
    """Gradient of logits, by `log p[target]` (one-hot minus p) and entropy (`-p * (log p + entropy)`)."""
    grad = -logprobs.exp() * (grad_logprobs + grad_entropy * (logprobs + entropy))
    index, is_inside = _column(targets, logprobs)
    return grad.scatter_add_(1, index, grad_logprobs * is_inside[:, None])


def _column(targets: Tensor, block: Tensor) -> tuple[Tensor, Tensor]:
    is_inside = (targets >= 0) & (targets < block.shape[1])
    return targets.clamp(0, block.shape[1] - 1)[:, None], is_inside
