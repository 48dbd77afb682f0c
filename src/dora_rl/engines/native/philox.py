"""Noise that depends on a stream and a position, and on nothing else.

Philox4x32-10 in integer operations that wrap alike on every device, so the words are the same bit for bit on
CPU and CUDA. Token `i` gets word `i % 4` of the block with counter `(i // 4, position, c2, c3)` and key
`(k0, k1)`, where `k0, k1, c2, c3` are the words of the request's stream.
"""

import torch
from torch import Tensor

from dora_rl.engines.streams import KEY_STEPS, MULTIPLIERS, NUM_ROUNDS, WORD_MASK

CHUNK_BLOCKS = 2**16
"""Philox blocks computed at a time: their words should stay in the cache."""


def words(streams_R4: Tensor, positions_R: Tensor, count: int) -> Tensor:
    """The first `count` random words of each row, as int64 in [0, 2**32)."""
    planes_4RB = _planes(streams_R4, positions_R, -(-count // 4))
    return torch.stack(planes_4RB, dim=-1).flatten(1)[:, :count]


def gumbel(streams_R4: Tensor, positions_R: Tensor, count: int) -> Tensor:
    """Standard Gumbel noise, float32, for the first `count` tokens of each row."""
    num_blocks = -(-count // 4)
    noise_RB4 = torch.empty(len(streams_R4), num_blocks, 4, device=streams_R4.device)
    num_rows = max(1, CHUNK_BLOCKS // num_blocks)
    parts = zip(*(each.split(num_rows) for each in (noise_RB4, streams_R4, positions_R)), strict=True)
    for part_RB4, streams, positions in parts:
        planes_4N = torch.stack([each.flatten().float() for each in _planes(streams, positions, num_blocks)])
        _to_gumbel(planes_4N)
        part_RB4.view(-1, 4).copy_(planes_4N.t())
    return noise_RB4.flatten(1)[:, :count]


def _to_gumbel(values: Tensor) -> None:
    # From the small end of the unit interval, where float32 is fine: the largest noise decides a draw.
    values.add_(0.5).mul_(2.0**-32).clamp_(max=1 - 2.0**-24)
    values.neg_().log1p_().neg_().log_().neg_()


def _planes(streams_R4: Tensor, positions_R: Tensor, num_blocks: int) -> tuple[Tensor, ...]:
    """The four words of each Philox block, `[rows, blocks]` each."""
    k0, k1, c2, c3 = (column[:, None] for column in streams_R4.unbind(1))
    buffers = torch.empty(6, len(streams_R4), num_blocks, dtype=torch.int64, device=streams_R4.device)
    x0, y0, x1, y1, p0, p1 = buffers
    for counter, value in ((y0, positions_R[:, None]), (x1, c2), (y1, c3)):
        counter[:] = value
    x0[:] = torch.arange(num_blocks, device=x0.device)
    for _ in range(NUM_ROUNDS):
        # A product may wrap: its 64 bits are the right ones whatever its sign.
        torch.mul(x0, MULTIPLIERS[0], out=p0)
        torch.mul(x1, MULTIPLIERS[1], out=p1)
        torch.bitwise_right_shift(p1, 32, out=x0).bitwise_xor_(y0).bitwise_xor_(k0).bitwise_and_(WORD_MASK)
        torch.bitwise_right_shift(p0, 32, out=x1).bitwise_xor_(y1).bitwise_xor_(k1).bitwise_and_(WORD_MASK)
        # Only the low words of these count, and only what is multiplied has to be free of the high ones.
        y0, y1, p0, p1 = p1, p0, y0, y1
        k0, k1 = k0 + KEY_STEPS[0] & WORD_MASK, k1 + KEY_STEPS[1] & WORD_MASK
    return x0, y0.bitwise_and_(WORD_MASK), x1, y1.bitwise_and_(WORD_MASK)
