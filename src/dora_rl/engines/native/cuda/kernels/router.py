"""Which experts each token goes to, and which rows of a product that makes, worked out on the device.

Nothing waits for the router: the number of tiles is bounded by what could be needed, whatever it says.
"""

from dataclasses import dataclass

import triton
import triton.language as tl
from torch import Tensor

from dora_rl.engines.native.cuda.kernels.overlap import await_previous, let_next_start, overlaps


@triton.jit
def ranked(values, ids, dtype: tl.constexpr, BLOCK_E: tl.constexpr):
    """How many experts come before each: those of higher scores, and among equals those of lower number.

    All pairs are compared by one integer each: the score's bits in their order, then the number. Floats of 16
    bits leave 13 bits of 32 for it.
    """
    # A score that is no number comes last; its weight says so.
    bits = tl.where(values == values, values, float("-inf")).to(tl.int32, bitcast=True)
    bits = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    if dtype.primitive_bitwidth == 16:
        keys = (bits & -8192) + (BLOCK_E - 1 - ids)
    else:
        keys = bits.to(tl.int64) * 8192 + (BLOCK_E - 1 - ids)
    # The sum is over the first axis: most of it stays inside a thread.
    return tl.sum((keys[:, None] > keys[None, :]).to(tl.int32), axis=0)


@triton.jit
def shares_of(values, ranks, NUM_ACTIVE: tl.constexpr, IS_NORMALISED: tl.constexpr):
    """The softmax of the scores, or of those of the active experts alone."""
    # Where none is a number, the highest is none either.
    shares = tl.exp(values - tl.maximum(tl.max(values, axis=0), -1e30))
    if IS_NORMALISED:
        return shares / tl.sum(tl.where(ranks < NUM_ACTIVE, shares, 0.0), axis=0)
    return shares / tl.sum(shares, axis=0)


@triton.jit
def _choose(
    scores,
    weights,
    experts,
    like,
    NUM_EXPERTS: tl.constexpr,
    NUM_ACTIVE: tl.constexpr,
    NUM_PARTS: tl.constexpr,
    IS_NORMALISED: tl.constexpr,
    BLOCK_E: tl.constexpr,
    OVERLAPS: tl.constexpr,
):
    let_next_start(OVERLAPS)
    row = tl.program_id(0).to(tl.int64)
    ids = tl.arange(0, BLOCK_E)
    inside = ids < NUM_EXPERTS
    await_previous(OVERLAPS)
    sums = tl.zeros([BLOCK_E], dtype=tl.float32)
    for part in tl.static_range(NUM_PARTS):
        line = scores + (part * tl.num_programs(0) + row) * NUM_EXPERTS
        sums += tl.load(line + ids, mask=inside, other=0.0).to(tl.float32)
    # Rounded as the decoder's router rounds.
    values = tl.where(inside, sums.to(like.dtype.element_ty).to(tl.float32), float("-inf"))
    ranks = ranked(values, ids, like.dtype.element_ty, BLOCK_E)
    places = row * NUM_ACTIVE + ranks
    is_active = inside & (ranks < NUM_ACTIVE)
    tl.store(experts + places, ids, mask=is_active)
    tl.store(weights + places, shares_of(values, ranks, NUM_ACTIVE, IS_NORMALISED), mask=is_active)


def choose_experts(
    scores: Tensor, like: Tensor, weights_TA: Tensor, experts_TA: Tensor, *, is_normalised: bool
) -> None:
    """The heaviest experts of each row of `scores [rows, experts]`, or of `[parts, rows, experts]` summed.

    Scores are rounded like `like`.
    """
    num_rows, num_experts = scores.shape[-2:]
    does_overlap = overlaps(scores)
    _choose[(num_rows,)](
        scores,
        weights_TA,
        experts_TA,
        like,
        NUM_EXPERTS=num_experts,
        NUM_ACTIVE=experts_TA.shape[1],
        NUM_PARTS=len(scores) if scores.dim() == 3 else 1,
        IS_NORMALISED=is_normalised,
        BLOCK_E=triton.next_power_of_2(num_experts),
        OVERLAPS=does_overlap,
        num_warps=4,
        launch_pdl=does_overlap,
    )


@triton.jit
def _sort(
    experts,
    order,
    tiles,
    num_pairs,
    num_tiles,
    BLOCK_E: tl.constexpr,
    BLOCK: tl.constexpr,
    ROWS: tl.constexpr,
    OVERLAPS: tl.constexpr,
):
    """A program an expert: it counts everybody's rows, and writes down its own."""
    let_next_start(OVERLAPS)
    own, others = tl.program_id(0), tl.arange(0, BLOCK_E)
    within = tl.arange(0, BLOCK)
    counts = tl.zeros([BLOCK_E], dtype=tl.int32)
    await_previous(OVERLAPS)
    for first in range(0, num_pairs, BLOCK):
        inside = first + within < num_pairs
        chosen = tl.load(experts + first + within, mask=inside, other=0)
        counts += tl.histogram(chosen, BLOCK_E, mask=inside)
    is_before = others < own
    needed = (counts + ROWS - 1) // ROWS
    count = tl.sum(tl.where(others == own, counts, 0), axis=0)
    first_row = tl.sum(tl.where(is_before, counts, 0), axis=0)
    first_tile = tl.sum(tl.where(is_before, needed, 0), axis=0)
    for tile in range(tl.cdiv(count, ROWS)):
        place = tiles + 3 * (first_tile + tile)
        tl.store(place, own)
        tl.store(place + 1, first_row + tile * ROWS)
        tl.store(place + 2, tl.minimum(count - tile * ROWS, ROWS))
    for tile in range(tl.sum(needed, axis=0) + own, num_tiles, tl.num_programs(0)):
        tl.store(tiles + 3 * tile + 2, 0)
    for first in range(0, num_pairs, BLOCK):
        inside = first + within < num_pairs
        chosen = tl.load(experts + first + within, mask=inside, other=-1)
        is_own = (chosen == own).to(tl.int32)
        place = first_row + tl.cumsum(is_own, axis=0) - 1
        tl.store(order + place, first + within, mask=is_own > 0)
        first_row += tl.sum(is_own, axis=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Routing:
    """Rows sorted by expert, and the tiles they form."""

    order_N: Tensor
    """Which (token, rank) pair each sorted row is, int32."""
    tiles_M3: Tensor
    """Expert, first sorted row and number of rows of each tile, int32. A tile of no rows is unused."""
    num_rows: int
    """Number of rows of a full tile."""


def most_tiles(num_pairs: int, num_experts: int, num_rows: int) -> int:
    """The most tiles that could be needed, whatever the router says."""
    return min(num_pairs, num_pairs // num_rows + num_experts)


def sort_by_expert(
    experts_TA: Tensor, num_experts: int, num_rows: int, order_N: Tensor, tiles: Tensor
) -> Routing:
    """Sort rows by expert into tiles of up to `num_rows` rows; fills `order` and the first of `tiles`."""
    num_pairs = experts_TA.numel()
    num_tiles = most_tiles(num_pairs, num_experts, num_rows)
    order_N, tiles_M3 = order_N[:num_pairs], tiles[:num_tiles]
    assert len(tiles_M3) == num_tiles, f"room for {len(tiles_M3)} of {num_tiles} tiles"
    block = min(1024, max(32, triton.next_power_of_2(num_pairs)))
    does_overlap = overlaps(experts_TA)
    _sort[(num_experts,)](
        experts_TA,
        order_N,
        tiles_M3,
        num_pairs,
        num_tiles,
        BLOCK_E=triton.next_power_of_2(num_experts),
        BLOCK=block,
        ROWS=num_rows,
        OVERLAPS=does_overlap,
        num_warps=4,
        launch_pdl=does_overlap,
    )
    return Routing(order_N=order_N, tiles_M3=tiles_M3, num_rows=num_rows)
