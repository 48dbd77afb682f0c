"""Noise that depends on a stream and a position, and on nothing else.

Philox4x32-10 in integer operations that wrap alike on every device, so the words are the same bit for bit on
CPU and CUDA. Token `i` gets word `i % 4` of the block with counter `(i // 4, position, c2, c3)` and key
`(k0, k1)`, where `k0, k1, c2, c3` are the words of the request's stream.
"""

import torch
from torch import Tensor

from dora_rl.rollout.streams import KEY_STEPS, MULTIPLIERS, NUM_ROUNDS, WORD_MASK


def words(streams_R4: Tensor, positions_R: Tensor, count: int) -> Tensor:
    """The first `count` words of each row, as int64 in [0, 2**32)."""
    num_rows, num_blocks = len(streams_R4), -(-count // 4)
    k0, k1, c2, c3 = (column[:, None] for column in streams_R4.unbind(1))
    counters = torch.empty(4, num_rows, num_blocks, dtype=torch.int64, device=streams_R4.device)
    counters[0] = torch.arange(num_blocks, device=streams_R4.device)
    for counter, word in zip(counters[1:], (positions_R[:, None], c2, c3), strict=True):
        counter[:] = word
    _scramble(counters, k0, k1)
    return counters.permute(1, 2, 0).flatten(1)[:, :count]


def gumbel(streams_R4: Tensor, positions_R: Tensor, count: int) -> Tensor:
    """Standard Gumbel noise, float32, for the first `count` tokens of each row."""
    # From the small end of the unit interval, where float32 is fine: the largest noise decides a draw.
    uniform = words(streams_R4, positions_R, count).float().add_(0.5).mul_(2.0**-32).clamp_(max=1 - 2.0**-24)
    return uniform.neg_().log1p_().neg_().log_().neg_()


def _scramble(counters: Tensor, k0: Tensor, k1: Tensor) -> None:
    """The rounds, in place: a hundred passes over numbers that should stay in the cache."""
    c0, c1, c2, c3 = counters
    first, second = torch.empty_like(c0), torch.empty_like(c2)
    for _ in range(NUM_ROUNDS):
        # A product may wrap: its 64 bits are the right ones whatever its sign.
        torch.mul(c0, MULTIPLIERS[0], out=first)
        torch.mul(c2, MULTIPLIERS[1], out=second)
        _high_word(second, out=c0).bitwise_xor_(c1).bitwise_xor_(k0)
        _high_word(first, out=c2).bitwise_xor_(c3).bitwise_xor_(k1)
        torch.bitwise_and(second, WORD_MASK, out=c1)
        torch.bitwise_and(first, WORD_MASK, out=c3)
        k0, k1 = k0 + KEY_STEPS[0] & WORD_MASK, k1 + KEY_STEPS[1] & WORD_MASK


def _high_word(product: Tensor, out: Tensor) -> Tensor:
    return torch.bitwise_right_shift(product, 32, out=out).bitwise_and_(WORD_MASK)
