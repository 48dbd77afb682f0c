"""Attention of one token a row over its paged context.

A program owns one row, one key head with the queries that share it, and one split of the context. Rotation
and the store of the row's own key and value ride along where every row is a sequence of its own (`is_fused`);
the own token is then read from registers. With several splits, whoever finishes a row last puts the parts
together, in their order, so the sum does not depend on who that was.

Splits are even, at least `least` tokens, and as many as the caller allows. With `fixed_split` they have that
many tokens whatever the context and the batch: same splits, same order, same bits.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from dora_rl.engines.native.cuda.kernels.linear import precision
from dora_rl.engines.native.cuda.kernels.overlap import await_previous, let_next_start, overlaps
from dora_rl.engines.native.cuda.kernels.rotary import Heads, Paging, Turning, turned

MAX_SPLITS = 16
_TOKENS = 32
"""Tokens that a program looks at at once.

With blocks of as many it looks up one block at a time, which is quicker.
"""


@triton.jit
def _merge(
    parts, masses, peaks, first, num_used, GROUP: tl.constexpr, DIM: tl.constexpr, DIM_P: tl.constexpr
):
    """Merge the parts of one row and key head, from `first` on.

    Some at a time, in order. `[group, dims]`, powers of two.
    """
    GROUP_P: tl.constexpr = triton.next_power_of_2(GROUP)
    # What does not fit a warp's registers is spilled by the whole kernel, whether it merges or not.
    AT_ONCE: tl.constexpr = max(1, min(16, 4096 // (GROUP_P * DIM_P)))
    queries, dims = tl.arange(0, GROUP_P), tl.arange(0, DIM_P)
    peak = tl.full([GROUP_P], float("-inf"), dtype=tl.float32)
    mass = tl.zeros([GROUP_P], dtype=tl.float32)
    mixed = tl.zeros([GROUP_P, DIM_P], dtype=tl.float32)
    for begin in range(0, num_used, AT_ONCE):
        splits = begin + tl.arange(0, AT_ONCE)
        at = (first + splits)[:, None] * GROUP + queries[None, :]
        inside = (splits < num_used)[:, None] & (queries < GROUP)[None, :]
        # Past the first cache: other processors wrote these.
        own_peak = tl.load(peaks + at, mask=inside, other=float("-inf"), cache_modifier=".cg")
        own_mass = tl.load(masses + at, mask=inside, other=0.0, cache_modifier=".cg")
        is_part = inside[:, :, None] & (dims < DIM)[None, None, :]
        own = tl.load(
            parts + at[:, :, None] * DIM + dims[None, None, :], mask=is_part, other=0.0, cache_modifier=".cg"
        )
        new_peak = tl.maximum(tl.maximum(peak, tl.max(own_peak, axis=0)), -1e30)
        kept, added = tl.exp2(peak - new_peak), tl.exp2(own_peak - new_peak[None, :])
        mixed = mixed * kept[:, None] + tl.sum(own * added[:, :, None], axis=0)
        mass = mass * kept + tl.sum(own_mass * added, axis=0)
        peak = new_peak
    return mixed / tl.where(queries < GROUP, mass, 1.0)[:, None]


@triton.jit
def _decode(
    qkv,
    out,
    q_norm,
    k_norm,
    cos_table,
    sin_table,
    cache,
    tables,
    slots,
    positions,
    parts,
    masses,
    peaks,
    arrivals,
    eps,
    scale,
    table_width,
    NUM_HEADS: tl.constexpr,
    NUM_KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    GROUP_P: tl.constexpr,
    HALF: tl.constexpr,
    HALF_P: tl.constexpr,
    DIM_P: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    BLOCK_N: tl.constexpr,
    MAX_SPLITS: tl.constexpr,
    MIN_SPLIT: tl.constexpr,
    FIXED_SPLIT: tl.constexpr,
    HAS_NORM: tl.constexpr,
    IS_FUSED: tl.constexpr,
    OVERLAPS: tl.constexpr,
    PRECISION: tl.constexpr,
):
    let_next_start(OVERLAPS)
    row, head, split = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.program_id(2)
    DIM: tl.constexpr = 2 * HALF
    position = tl.load(positions + row)
    num_seen = position if IS_FUSED else position + 1
    if FIXED_SPLIT > 0:
        length = FIXED_SPLIT
    else:
        even = tl.cdiv(tl.cdiv(num_seen, MAX_SPLITS), BLOCK_N) * BLOCK_N
        length = tl.maximum(even, MIN_SPLIT)
    num_used = tl.maximum(tl.cdiv(num_seen, length), 1)
    if split >= num_used:
        return
    begin = split * length
    end = tl.minimum(begin + length, num_seen)
    table = tables + tl.load(slots + row) * table_width

    queries, halves, dims = tl.arange(0, GROUP_P), tl.arange(0, HALF_P), tl.arange(0, DIM_P)
    dtype = qkv.dtype.element_ty
    line = qkv + row * (NUM_HEADS + 2 * NUM_KV_HEADS) * DIM
    inside = (queries[:, None] < GROUP) & (halves[None, :] < HALF)
    places = line + (head * GROUP + queries[:, None]) * DIM + halves[None, :]
    await_previous(OVERLAPS)
    q_first = tl.load(places, mask=inside, other=0.0)
    q_second = tl.load(places + HALF, mask=inside, other=0.0)

    peak = tl.full([GROUP_P], float("-inf"), dtype=tl.float32)
    mass = tl.zeros([GROUP_P], dtype=tl.float32)
    mixed = tl.zeros([GROUP_P, DIM_P], dtype=tl.float32)
    if IS_FUSED:
        cos = tl.load(cos_table + position * HALF + halves, mask=halves < HALF, other=0.0)[None, :]
        sin = tl.load(sin_table + position * HALF + halves, mask=halves < HALF, other=0.0)[None, :]
        q_first, q_second = turned(q_first, q_second, q_norm, cos, sin, halves, HALF, eps, HAS_NORM)
        if split == num_used - 1:
            key = line + (NUM_HEADS + head) * DIM
            is_half = (halves < HALF)[None, :]
            k_first = tl.load(key + halves[None, :], mask=is_half, other=0.0)
            k_second = tl.load(key + HALF + halves[None, :], mask=is_half, other=0.0)
            k_first, k_second = turned(k_first, k_second, k_norm, cos, sin, halves, HALF, eps, HAS_NORM)
            value = tl.load(key + NUM_KV_HEADS * DIM + dims, mask=dims < DIM, other=0.0)
            block = tl.load(table + position // BLOCK_SIZE).to(tl.int64)
            cell = cache + ((block * NUM_KV_HEADS + head) * 2 * BLOCK_SIZE + position % BLOCK_SIZE) * DIM
            tl.store(cell + halves[None, :], k_first, mask=is_half)
            tl.store(cell + HALF + halves[None, :], k_second, mask=is_half)
            tl.store(cell + BLOCK_SIZE * DIM + dims, value, mask=dims < DIM)
            own = tl.sum(q_first.to(tl.float32) * k_first.to(tl.float32), axis=1)
            own += tl.sum(q_second.to(tl.float32) * k_second.to(tl.float32), axis=1)
            peak = own * scale
            mass += 1.0
            mixed += value.to(tl.float32)[None, :]

    offsets = tl.arange(0, BLOCK_N)
    for first in range(begin, end, BLOCK_N):
        seen = first + offsets
        is_seen = seen < end
        if BLOCK_N == BLOCK_SIZE:
            block = tl.load(table + first // BLOCK_SIZE).to(tl.int64)
            cells = cache + (block * NUM_KV_HEADS + head) * 2 * BLOCK_SIZE * DIM + offsets * DIM
        else:
            blocks = tl.load(table + seen // BLOCK_SIZE, mask=is_seen, other=0).to(tl.int64)
            cells = cache + ((blocks * NUM_KV_HEADS + head) * 2 * BLOCK_SIZE + seen % BLOCK_SIZE) * DIM
        is_half = (halves < HALF)[:, None] & is_seen[None, :]
        k_first = tl.load(cells[None, :] + halves[:, None], mask=is_half, other=0.0)
        k_second = tl.load(cells[None, :] + HALF + halves[:, None], mask=is_half, other=0.0)
        is_value = is_seen[:, None] & (dims < DIM)[None, :]
        values = tl.load(cells[:, None] + BLOCK_SIZE * DIM + dims[None, :], mask=is_value, other=0.0)
        scores = tl.dot(q_first, k_first, input_precision=PRECISION)
        scores = tl.dot(q_second, k_second, scores, input_precision=PRECISION)
        scores = tl.where(is_seen[None, :], scores * scale, float("-inf"))
        new_peak = tl.maximum(peak, tl.max(scores, axis=1))
        kept = tl.exp2(peak - new_peak)
        shares = tl.exp2(scores - new_peak[:, None])
        mass = mass * kept + tl.sum(shares, axis=1)
        mixed = tl.dot(shares.to(dtype), values, mixed * kept[:, None], input_precision=PRECISION)
        peak = new_peak

    is_query = queries < GROUP
    is_mixed = is_query[:, None] & (dims < DIM)[None, :]
    target = out + row * NUM_HEADS * DIM + (head * GROUP + queries[:, None]) * DIM + dims[None, :]
    if MAX_SPLITS == 1 or num_used == 1:
        tl.store(target, (mixed / mass[:, None]).to(dtype), mask=is_mixed)
    else:
        first_part = (row * NUM_KV_HEADS + head) * MAX_SPLITS
        at = (first_part + split) * GROUP + queries
        tl.store(parts + at[:, None] * DIM + dims[None, :], mixed, mask=is_mixed)
        tl.store(masses + at, mass, mask=is_query)
        tl.store(peaks + at, peak, mask=is_query)
        # All threads' stores come before the arrival is counted.
        tl.debug_barrier()
        counter = arrivals + row * NUM_KV_HEADS + head
        if tl.atomic_add(counter, 1, sem="acq_rel") == num_used - 1:
            whole = _merge(parts, masses, peaks, first_part, num_used, GROUP, DIM, DIM_P)
            some = tl.arange(0, whole.shape[0])
            whole_target = out + row * NUM_HEADS * DIM + (head * GROUP + some[:, None]) * DIM + dims[None, :]
            tl.store(whole_target, whole.to(dtype), mask=(some < GROUP)[:, None] & (dims < DIM)[None, :])
            tl.store(counter, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitSums:
    """Buffers for the split contexts of rows.

    Sums, masses and peaks, and how many have arrived (zero between launches).
    """

    sums: Tensor
    masses: Tensor
    peaks: Tensor
    arrivals: Tensor

    @classmethod
    def empty(cls, num_rows: int, max_splits: int, heads: Heads, device: torch.device | str) -> "SplitSums":
        """Buffers for this many rows and splits."""
        places = num_rows * heads.num_heads * max_splits
        return cls(
            sums=torch.empty(places * heads.head_dim, device=device),
            masses=torch.empty(places, device=device),
            peaks=torch.empty(places, device=device),
            arrivals=torch.zeros(num_rows * heads.num_kv_heads, dtype=torch.int32, device=device),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """How a context is divided among programs.

    Into at most `most` parts of at least `least` tokens, or of `fixed` tokens each.
    """

    most: int = 1
    least: int = 128
    fixed: int = 0


def decode_attention(
    qkv_TD: Tensor,
    out_TD: Tensor,
    heads: Heads,
    turning: Turning,
    paging: Paging,
    parts: SplitSums,
    split: Split,
    *,
    is_fused: bool,
) -> None:
    """What each row's token reads from its context; `out` has the heads side by side."""
    does_overlap = overlaps(qkv_TD)
    has_norm = turning.q_norm_D is not None
    half = heads.head_dim // 2
    _decode[(len(qkv_TD), heads.num_kv_heads, split.most)](
        qkv_TD,
        out_TD,
        turning.q_norm_D if has_norm else qkv_TD,
        turning.k_norm_D if has_norm else qkv_TD,
        turning.cos_PD,
        turning.sin_PD,
        paging.cache,
        paging.tables_SB,
        paging.slots_T,
        paging.positions_T,
        parts.sums,
        parts.masses,
        parts.peaks,
        parts.arrivals,
        heads.eps,
        heads.score_scale,
        paging.tables_SB.shape[1],
        NUM_HEADS=heads.num_heads,
        NUM_KV_HEADS=heads.num_kv_heads,
        GROUP=heads.group,
        GROUP_P=max(16, triton.next_power_of_2(heads.group)),
        HALF=half,
        HALF_P=max(16, triton.next_power_of_2(half)),
        DIM_P=max(16, triton.next_power_of_2(heads.head_dim)),
        BLOCK_SIZE=paging.block_size,
        BLOCK_N=_TOKENS,
        MAX_SPLITS=split.most,
        MIN_SPLIT=split.least,
        FIXED_SPLIT=split.fixed,
        HAS_NORM=has_norm,
        IS_FUSED=is_fused,
        OVERLAPS=does_overlap,
        PRECISION=precision(qkv_TD),
        num_warps=1 if qkv_TD.dtype.itemsize == 2 else 4,
        num_stages=2,
        launch_pdl=does_overlap,
    )


def split_for(num_rows: int, max_context: int, group: int) -> Split:
    """How contexts are split: few rows to occupy the device, many only so that nobody waits for the longest.

    In powers of two: each is a graph of its own. Where many queries share a key head, parts are large, and
    putting many of them together takes longer than reading their context.
    """
    if num_rows >= 128:
        return Split(most=min(MAX_SPLITS, triton.next_power_of_2(triton.cdiv(max_context, 512))), least=512)
    most = 1 << ((256 if num_rows < 32 else 192) // num_rows).bit_length() - 1
    if group <= 2:
        return Split(most=min(4 * MAX_SPLITS, most), least=32 if num_rows < 16 else 128)
    return Split(most=min(MAX_SPLITS, most), least=32 if num_rows < 16 else 64 if num_rows < 32 else 128)
