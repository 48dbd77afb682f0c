"""Products of rows with their own expert's matrix, the matrices read at the speed of memory.

A program takes some outputs of one expert and a tile of its rows. The outputs are the side that the matrix
units want long, the rows may be few: where there are many experts, each has few. A row's sums have an order
that depends on the tile's sizes alone, so with one size its bits depend on no other row.
"""

import triton
import triton.language as tl
from torch import Tensor

from dora_rl.engines.native.cuda.kernels.activation import gate
from dora_rl.engines.native.cuda.kernels.linear import precision
from dora_rl.engines.native.cuda.kernels.overlap import await_previous, let_next_start, overlaps
from dora_rl.engines.native.cuda.kernels.router import Routing
from dora_rl.engines.native.cuda.tiles import Tile


@triton.jit
def _weights(
    matrix, outputs, columns, NUM_OUTPUTS: tl.constexpr, NUM_INPUTS: tl.constexpr, IS_EVEN: tl.constexpr
):
    places = matrix + outputs[:, None] * NUM_INPUTS + columns[None, :]
    if IS_EVEN:
        weights = tl.load(places)
    else:
        inside = (outputs < NUM_OUTPUTS)[:, None] & (columns < NUM_INPUTS)[None, :]
        weights = tl.load(places, mask=inside, other=0.0)
    return weights


@triton.jit
def _product(
    inputs,
    weight,
    out,
    order,
    tiles,
    NUM_OUTPUTS: tl.constexpr,
    NUM_INPUTS: tl.constexpr,
    SHARED_BY: tl.constexpr,
    IS_GATED: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    STAGES: tl.constexpr,
    OVERLAPS: tl.constexpr,
    PRECISION: tl.constexpr,
):
    let_next_start(OVERLAPS)
    IS_EVEN: tl.constexpr = NUM_OUTPUTS % BLOCK_N == 0 and NUM_INPUTS % BLOCK_K == 0
    MATRIX: tl.constexpr = NUM_OUTPUTS * NUM_INPUTS
    tile = tiles + 3 * tl.program_id(1)
    outputs, within = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N), tl.arange(0, BLOCK_K)
    some = tl.arange(0, ROWS)
    await_previous(OVERLAPS)
    size = tl.load(tile + 2)
    if size <= 0:
        return
    is_row = some < size
    pairs = tl.load(order + tl.load(tile + 1) + some, mask=is_row, other=0)
    lines = inputs + (pairs // SHARED_BY).to(tl.int64) * NUM_INPUTS
    matrix = weight + tl.load(tile).to(tl.int64) * ((2 if IS_GATED else 1) * MATRIX)
    sums = tl.zeros([BLOCK_N, ROWS], dtype=tl.float32)
    sums_up = tl.zeros([BLOCK_N, ROWS], dtype=tl.float32)
    for first in tl.range(0, NUM_INPUTS, BLOCK_K, num_stages=STAGES):
        columns = first + within
        is_value = is_row[:, None] if IS_EVEN else is_row[:, None] & (columns < NUM_INPUTS)[None, :]
        values = tl.load(lines[:, None] + columns[None, :], mask=is_value, other=0.0)
        own = _weights(matrix, outputs, columns, NUM_OUTPUTS, NUM_INPUTS, IS_EVEN)
        sums = tl.dot(own, tl.trans(values), sums, input_precision=PRECISION)
        if IS_GATED:
            own_up = _weights(matrix + MATRIX, outputs, columns, NUM_OUTPUTS, NUM_INPUTS, IS_EVEN)
            sums_up = tl.dot(own_up, tl.trans(values), sums_up, input_precision=PRECISION)
    dtype = out.dtype.element_ty
    result = sums.to(dtype)
    if IS_GATED:
        result = gate(result, sums_up.to(dtype))
    places = out + pairs.to(tl.int64)[None, :] * NUM_OUTPUTS + outputs[:, None]
    tl.store(places, result, mask=is_row[None, :] & (outputs < NUM_OUTPUTS)[:, None])


def expert_linear(
    inputs: Tensor,
    weight_EOI: Tensor,
    routing: Routing,
    out_NO: Tensor,
    tile: Tile,
    *,
    is_gated: bool = False,
) -> None:
    """`inputs[pair] @ weight[expert].T` for every (token, rank) pair, written to its row.

    Where there are fewer inputs than pairs, pairs of a token share its row. A gated weight has the rows of
    the gate, then those of up.
    """
    num_pairs, num_outputs = out_NO.shape
    num_inputs = inputs.shape[1]
    does_overlap = overlaps(inputs)
    grid = (triton.cdiv(num_outputs, tile.outputs), len(routing.tiles_M3))
    _product[grid](
        inputs,
        weight_EOI,
        out_NO,
        routing.order_N,
        routing.tiles_M3,
        NUM_OUTPUTS=num_outputs,
        NUM_INPUTS=num_inputs,
        SHARED_BY=num_pairs // len(inputs),
        IS_GATED=is_gated,
        ROWS=routing.num_rows,
        BLOCK_N=tile.outputs,
        BLOCK_K=min(tile.inputs, max(16, triton.next_power_of_2(num_inputs))),
        STAGES=tile.stages,
        OVERLAPS=does_overlap,
        PRECISION=precision(weight_EOI),
        num_warps=tile.warps,
        launch_pdl=does_overlap,
    )
