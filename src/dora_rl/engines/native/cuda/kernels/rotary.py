"""Queries and keys: normalised, turned to their positions; keys and values put into the cache.

A head is held as its two halves, because rotation pairs dimension `i` with `i + head_dim / 2`. Rounds where
the decoder rounds: after the norm, and after the rotation.
"""

import math
from dataclasses import dataclass

import triton
import triton.language as tl
from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Heads:
    """Shapes of a layer's attention heads."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    eps: float

    @property
    def group(self) -> int:
        """Number of query heads that share a key head."""
        return self.num_heads // self.num_kv_heads

    @property
    def score_scale(self) -> float:
        """Scale of attention scores for exponentials to base 2, which is one instruction less."""
        return self.head_dim**-0.5 * math.log2(math.e)


@dataclass(frozen=True, slots=True, kw_only=True)
class Paging:
    """Where tokens lie: `cache [blocks, kv heads, 2, block size, head size]` of one layer, and the tables."""

    cache: Tensor
    tables_SB: Tensor
    slots_T: Tensor
    positions_T: Tensor

    @property
    def block_size(self) -> int:
        """Tokens in a KV block."""
        return int(self.cache.shape[3])


@dataclass(frozen=True, slots=True, kw_only=True)
class Turning:
    """Cosines and sines by position, and the weights of the norms of heads where the model has them."""

    cos_PD: Tensor
    sin_PD: Tensor
    q_norm_D: Tensor | None
    k_norm_D: Tensor | None


@triton.jit
def turned(first, second, norm, cos, sin, dims, HALF: tl.constexpr, eps, HAS_NORM: tl.constexpr):
    """Heads `[heads, half]`, as two halves, normalised and rotated; in their own dtype."""
    dtype = first.dtype
    inside = dims < HALF
    if HAS_NORM:
        wide_first, wide_second = first.to(tl.float32), second.to(tl.float32)
        squares = tl.sum(wide_first * wide_first, axis=1) + tl.sum(wide_second * wide_second, axis=1)
        scale = tl.rsqrt(squares / (2 * HALF) + eps)[:, None]
        weight_first = tl.load(norm + dims, mask=inside, other=0.0).to(tl.float32)[None, :]
        weight_second = tl.load(norm + HALF + dims, mask=inside, other=0.0).to(tl.float32)[None, :]
        first = (wide_first * scale * weight_first).to(dtype)
        second = (wide_second * scale * weight_second).to(dtype)
    a, b = first.to(tl.float32), second.to(tl.float32)
    return (a * cos - b * sin).to(dtype), (b * cos + a * sin).to(dtype)


@triton.jit
def _rotate(
    qkv,
    q_norm,
    k_norm,
    cos_table,
    sin_table,
    cache,
    tables,
    slots,
    positions,
    eps,
    table_width,
    NUM_HEADS: tl.constexpr,
    NUM_KV_HEADS: tl.constexpr,
    HALF: tl.constexpr,
    HEADS_P: tl.constexpr,
    KV_HEADS_P: tl.constexpr,
    HALF_P: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    HAS_NORM: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    position = tl.load(positions + token)
    block = tl.load(tables + tl.load(slots + token) * table_width + position // BLOCK_SIZE).to(tl.int64)
    dims = tl.arange(0, HALF_P)
    cos = tl.load(cos_table + position * HALF + dims, mask=dims < HALF, other=0.0)[None, :]
    sin = tl.load(sin_table + position * HALF + dims, mask=dims < HALF, other=0.0)[None, :]
    row = qkv + token * (NUM_HEADS + 2 * NUM_KV_HEADS) * 2 * HALF

    heads = tl.arange(0, HEADS_P)
    inside = (heads[:, None] < NUM_HEADS) & (dims[None, :] < HALF)
    places = row + heads[:, None] * 2 * HALF + dims[None, :]
    first, second = tl.load(places, mask=inside, other=0.0), tl.load(places + HALF, mask=inside, other=0.0)
    first, second = turned(first, second, q_norm, cos, sin, dims, HALF, eps, HAS_NORM)
    tl.store(places, first, mask=inside)
    tl.store(places + HALF, second, mask=inside)

    kv_heads = tl.arange(0, KV_HEADS_P)
    inside = (kv_heads[:, None] < NUM_KV_HEADS) & (dims[None, :] < HALF)
    places = row + (NUM_HEADS + kv_heads[:, None]) * 2 * HALF + dims[None, :]
    first, second = tl.load(places, mask=inside, other=0.0), tl.load(places + HALF, mask=inside, other=0.0)
    first, second = turned(first, second, k_norm, cos, sin, dims, HALF, eps, HAS_NORM)
    cells = (
        cache
        + ((block * NUM_KV_HEADS + kv_heads[:, None]) * 2 * BLOCK_SIZE + position % BLOCK_SIZE) * 2 * HALF
    )
    cells += dims[None, :]
    tl.store(cells, first, mask=inside)
    tl.store(cells + HALF, second, mask=inside)
    values = places + NUM_KV_HEADS * 2 * HALF
    cells += BLOCK_SIZE * 2 * HALF
    tl.store(cells, tl.load(values, mask=inside), mask=inside)
    tl.store(cells + HALF, tl.load(values + HALF, mask=inside), mask=inside)


def rotate_and_store(qkv_TD: Tensor, heads: Heads, turning: Turning, paging: Paging) -> None:
    """Turn the queries in place, and put turned keys and values where they belong in the cache."""
    has_norm = turning.q_norm_D is not None
    half = heads.head_dim // 2
    _rotate[(len(qkv_TD),)](
        qkv_TD,
        turning.q_norm_D if has_norm else qkv_TD,
        turning.k_norm_D if has_norm else qkv_TD,
        turning.cos_PD,
        turning.sin_PD,
        paging.cache,
        paging.tables_SB,
        paging.slots_T,
        paging.positions_T,
        heads.eps,
        paging.tables_SB.shape[1],
        NUM_HEADS=heads.num_heads,
        NUM_KV_HEADS=heads.num_kv_heads,
        HALF=half,
        HEADS_P=triton.next_power_of_2(heads.num_heads),
        KV_HEADS_P=triton.next_power_of_2(heads.num_kv_heads),
        HALF_P=triton.next_power_of_2(half),
        BLOCK_SIZE=paging.block_size,
        HAS_NORM=has_norm,
        num_warps=4,
    )
