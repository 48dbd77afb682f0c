"""Attention of chunks of prompts over the paged cache, which already holds their own keys and values.

A program owns a stretch of one chunk's tokens and one key head with the queries that share it: `rows = tokens
x group`. Stretches come as a list on the device, so that one captured launch serves any mix of chunks; a
stretch of no tokens is nobody's.
"""

import triton
import triton.language as tl
from torch import Tensor

from dora_rl.engines.native.cuda.kernels.linear import precision
from dora_rl.engines.native.cuda.kernels.rotary import Heads, Paging


@triton.jit
def _prefill(
    qkv,
    out,
    cache,
    tables,
    slots,
    positions,
    stretches,
    scale,
    table_width,
    NUM_HEADS: tl.constexpr,
    NUM_KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    DIM: tl.constexpr,
    DIM_P: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    PRECISION: tl.constexpr,
):
    stretch, head = tl.program_id(0), tl.program_id(1)
    num_tokens = tl.load(stretches + 2 * stretch + 1)
    if num_tokens == 0:
        return
    first_token = tl.load(stretches + 2 * stretch).to(tl.int64)
    start = tl.load(positions + first_token)
    table = tables + tl.load(slots + first_token) * table_width

    rows, dims, offsets = tl.arange(0, BLOCK_M), tl.arange(0, DIM_P), tl.arange(0, BLOCK_N)
    dtype = qkv.dtype.element_ty
    tokens = first_token + rows // GROUP
    heads = head * GROUP + rows % GROUP
    is_row = rows // GROUP < num_tokens
    is_dim = (dims < DIM)[None, :]
    places = tokens[:, None] * (NUM_HEADS + 2 * NUM_KV_HEADS) * DIM + heads[:, None] * DIM + dims[None, :]
    q = tl.load(qkv + places, mask=is_row[:, None] & is_dim, other=0.0)
    last_seen = start + rows // GROUP

    peak = tl.full([BLOCK_M], float("-inf"), dtype=tl.float32)
    mass = tl.zeros([BLOCK_M], dtype=tl.float32)
    mixed = tl.zeros([BLOCK_M, DIM_P], dtype=tl.float32)
    end = start + num_tokens
    for first in range(0, end, BLOCK_N):
        seen = first + offsets
        is_there = seen < end
        blocks = tl.load(table + seen // BLOCK_SIZE, mask=is_there, other=0).to(tl.int64)
        cells = cache + ((blocks * NUM_KV_HEADS + head) * 2 * BLOCK_SIZE + seen % BLOCK_SIZE) * DIM
        inside = is_there[:, None] & is_dim
        keys = tl.load(cells[:, None] + dims[None, :], mask=inside, other=0.0)
        values = tl.load(cells[:, None] + BLOCK_SIZE * DIM + dims[None, :], mask=inside, other=0.0)
        scores = tl.dot(q, tl.trans(keys), input_precision=PRECISION) * scale
        scores = tl.where(seen[None, :] <= last_seen[:, None], scores, float("-inf"))
        new_peak = tl.maximum(peak, tl.max(scores, axis=1))
        kept = tl.exp2(peak - new_peak)
        shares = tl.exp2(scores - new_peak[:, None])
        mass = mass * kept + tl.sum(shares, axis=1)
        mixed = tl.dot(shares.to(dtype), values, mixed * kept[:, None], input_precision=PRECISION)
        peak = new_peak

    target = out + tokens[:, None] * NUM_HEADS * DIM + heads[:, None] * DIM + dims[None, :]
    tl.store(target, (mixed / mass[:, None]).to(dtype), mask=is_row[:, None] & is_dim)


def stretch_tokens(heads: Heads) -> int:
    """Tokens of a stretch: a tile of queries, shared among the heads of a group."""
    return max(1, 128 // triton.next_power_of_2(heads.group))


def prefill_attention(
    qkv_TD: Tensor, out_TD: Tensor, heads: Heads, paging: Paging, stretches_N2: Tensor
) -> None:
    """What each token reads up to and including itself; a stretch is its first token and how many it has."""
    is_wide = qkv_TD.dtype.itemsize == 4
    _prefill[(len(stretches_N2), heads.num_kv_heads)](
        qkv_TD,
        out_TD,
        paging.cache,
        paging.tables_SB,
        paging.slots_T,
        paging.positions_T,
        stretches_N2,
        heads.score_scale,
        paging.tables_SB.shape[1],
        NUM_HEADS=heads.num_heads,
        NUM_KV_HEADS=heads.num_kv_heads,
        GROUP=heads.group,
        DIM=heads.head_dim,
        DIM_P=max(16, triton.next_power_of_2(heads.head_dim)),
        BLOCK_SIZE=paging.block_size,
        BLOCK_M=max(16, triton.next_power_of_2(stretch_tokens(heads) * heads.group)),
        BLOCK_N=32 if is_wide else 64,
        PRECISION=precision(qkv_TD),
        num_warps=8,
        num_stages=2 if is_wide else 3,
    )
