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
    k0, k1, c2, c3 = (column[:, None] for column in streams_R4.unbind(1))
    num_blocks = -(-count // 4)
    counter_RB = torch.arange(num_blocks, device=streams_R4.device).expand(len(streams_R4), -1)
    blocks = _rounds((counter_RB, positions_R[:, None], c2, c3), k0, k1)
    return torch.stack(torch.broadcast_tensors(*blocks), dim=-1).flatten(1)[:, :count]


def gumbel(streams_R4: Tensor, positions_R: Tensor, count: int) -> Tensor:
    """Standard Gumbel noise, float32, for the first `count` tokens of each row."""
    # From the small end of the unit interval, where float32 is fine: the largest noise decides a draw.
    uniform = words(streams_R4, positions_R, count).float().add_(0.5).mul_(2.0**-32).clamp_(max=1 - 2.0**-24)
    return uniform.neg_().log1p_().neg_().log_().neg_()


def _rounds(counter: tuple[Tensor, Tensor, Tensor, Tensor], k0: Tensor, k1: Tensor) -> tuple[Tensor, ...]:
    c0, c1, c2, c3 = counter
    for _ in range(NUM_ROUNDS):
        # A product may wrap: its 64 bits are the right ones whatever its sign.
        first, second = c0 * MULTIPLIERS[0], c2 * MULTIPLIERS[1]
        c0, c1 = (second >> 32 & WORD_MASK) ^ c1 ^ k0, second & WORD_MASK
        c2, c3 = (first >> 32 & WORD_MASK) ^ c3 ^ k1, first & WORD_MASK
        k0, k1 = k0 + KEY_STEPS[0] & WORD_MASK, k1 + KEY_STEPS[1] & WORD_MASK
    return c0, c1, c2, c3
