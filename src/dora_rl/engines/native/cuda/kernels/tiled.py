"""Products of some dozens of rows: too many for registers, too few for the library to occupy a GPU.

The outputs are the side that the matrix units want long, and rows are filled up to 16, 32 or 64; where that
many rows meet so few outputs that each processor gets 32, the rows are. A matrix with few outputs leaves most
processors idle, so its inputs are split too; the parts are left as they are, for the norm that follows to add
up.
"""

import triton
import triton.language as tl
from torch import Tensor

from dora_rl.engines.native.cuda.kernels.activation import gate
from dora_rl.engines.native.cuda.kernels.linear import precision
from dora_rl.engines.native.cuda.kernels.overlap import await_previous, let_next_start, overlaps
from dora_rl.engines.native.cuda.tiles import Tile


@triton.jit
def _weights(
    matrix, outputs, columns, NUM_OUTPUTS: tl.constexpr, NUM_INPUTS: tl.constexpr, IS_EVEN: tl.constexpr
):
    places = matrix + outputs.to(tl.int64)[:, None] * NUM_INPUTS + columns[None, :]
    if IS_EVEN:
        weights = tl.load(places)
    else:
        inside = (outputs < NUM_OUTPUTS)[:, None] & (columns < NUM_INPUTS)[None, :]
        weights = tl.load(places, mask=inside, other=0.0)
    return weights


@triton.jit
def _added(weights, values, sums, HAS_LONG_ROWS: tl.constexpr, PRECISION: tl.constexpr):
    if HAS_LONG_ROWS:
        sums = tl.dot(values, tl.trans(weights), sums, input_precision=PRECISION)
    else:
        sums = tl.dot(weights, tl.trans(values), sums, input_precision=PRECISION)
    return sums


@triton.jit
def _tiled(
    inputs,
    weight,
    bias,
    out,
    num_rows,
    NUM_OUTPUTS: tl.constexpr,
    NUM_INPUTS: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    IS_GATED: tl.constexpr,
    HAS_LONG_ROWS: tl.constexpr,
    PARTS: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    STAGES: tl.constexpr,
    OVERLAPS: tl.constexpr,
    PRECISION: tl.constexpr,
):
    let_next_start(OVERLAPS)
    part = tl.program_id(1)
    SHARE: tl.constexpr = (NUM_INPUTS + PARTS * BLOCK_K - 1) // (PARTS * BLOCK_K) * BLOCK_K
    IS_EVEN: tl.constexpr = NUM_OUTPUTS % BLOCK_N == 0 and NUM_INPUTS % (PARTS * BLOCK_K) == 0
    rows, within = tl.arange(0, ROWS), tl.arange(0, BLOCK_K)
    outputs = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    up = weight + NUM_OUTPUTS * NUM_INPUTS
    SIZE: tl.constexpr = [ROWS, BLOCK_N] if HAS_LONG_ROWS else [BLOCK_N, ROWS]
    sums = tl.zeros(SIZE, dtype=tl.float32)
    sums_up = tl.zeros(SIZE, dtype=tl.float32)
    await_previous(OVERLAPS)
    for first in tl.range(0, SHARE, BLOCK_K, num_stages=STAGES):
        columns = part * SHARE + first + within
        inside = (rows < num_rows)[:, None] & (columns < NUM_INPUTS)[None, :]
        values = tl.load(inputs + rows[:, None] * NUM_INPUTS + columns[None, :], mask=inside, other=0.0)
        own = _weights(weight, outputs, columns, NUM_OUTPUTS, NUM_INPUTS, IS_EVEN)
        sums = _added(own, values, sums, HAS_LONG_ROWS, PRECISION)
        if IS_GATED:
            own_up = _weights(up, outputs, columns, NUM_OUTPUTS, NUM_INPUTS, IS_EVEN)
            sums_up = _added(own_up, values, sums_up, HAS_LONG_ROWS, PRECISION)
    if HAS_LONG_ROWS:
        sums, sums_up = tl.trans(sums), tl.trans(sums_up)
    inside = (rows < num_rows)[None, :] & (outputs < NUM_OUTPUTS)[:, None]
    dtype = out.dtype.element_ty
    if HAS_BIAS:
        added = tl.load(bias + outputs, mask=outputs < NUM_OUTPUTS, other=0.0).to(tl.float32)
        sums += tl.where(part == 0, added, 0.0)[:, None]
    result = sums.to(dtype)
    if IS_GATED:
        result = gate(result, sums_up.to(dtype))
    places = (part * num_rows + rows[None, :]) * NUM_OUTPUTS + outputs[:, None]
    tl.store(out + places, result, mask=inside)


MAX_PARTS = 4
"""Most parts that the inputs of a matrix with few outputs are split into."""
MAX_ROWS = 64
_PROCESSORS = 132
"""Multiprocessors of an H100 or H200; on other GPUs what is chosen by it is only a matter of speed."""


def num_parts(num_outputs: int) -> int:
    """Into how many parts inputs are split, so that every processor has at most one program."""
    parts = MAX_PARTS
    while parts > 1 and parts * triton.cdiv(num_outputs, 64) > _PROCESSORS:
        parts //= 2
    return parts


def tile_for(num_rows: int, num_outputs: int, parts: int, *, is_gated: bool) -> Tile:
    """The tile that measured best on an H200 for a product of this shape."""
    rows = max(16, triton.next_power_of_2(num_rows))
    if rows == 64 and parts * triton.cdiv(num_outputs, 32) <= _PROCESSORS:
        inputs, stages = (128, 4) if is_gated else (256, 3)
        return Tile(rows=rows, outputs=32, inputs=inputs, warps=4, stages=stages, has_long_rows=True)
    if is_gated and num_outputs >= 8192:
        return Tile(rows=rows, outputs=128, inputs=64, warps=8, stages=4)
    if is_gated or rows > 16:
        return Tile(rows=rows, outputs=64, inputs=128, warps=4, stages=4)
    return Tile(rows=rows, outputs=64, inputs=256, warps=4, stages=3)


def tiled_linear(
    inputs_TI: Tensor,
    weight_OI: Tensor,
    out: Tensor,
    *,
    bias_O: Tensor | None = None,
    is_gated: bool = False,
    tile: Tile | None = None,
) -> None:
    """`inputs @ weight.T + bias` to `out [rows, outputs]`, or its parts to `out [parts, rows, outputs]`."""
    num_rows, num_inputs = inputs_TI.shape
    num_outputs = out.shape[-1]
    parts = out.shape[0] if out.dim() == 3 else 1
    assert num_rows <= MAX_ROWS, f"{num_rows} rows"
    tile = tile or tile_for(num_rows, num_outputs, parts, is_gated=is_gated)
    does_overlap = overlaps(inputs_TI)
    _tiled[(triton.cdiv(num_outputs, tile.outputs), parts)](
        inputs_TI,
        weight_OI,
        weight_OI if bias_O is None else bias_O,
        out,
        num_rows,
        NUM_OUTPUTS=num_outputs,
        NUM_INPUTS=num_inputs,
        HAS_BIAS=bias_O is not None,
        IS_GATED=is_gated,
        HAS_LONG_ROWS=tile.has_long_rows,
        PARTS=parts,
        ROWS=tile.rows,
        BLOCK_N=tile.outputs,
        BLOCK_K=min(tile.inputs, max(16, triton.next_power_of_2(num_inputs))),
        STAGES=tile.stages,
        OVERLAPS=does_overlap,
        PRECISION=precision(weight_OI),
        num_warps=tile.warps,
        launch_pdl=does_overlap,
    )
