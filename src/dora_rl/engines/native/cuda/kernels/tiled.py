"""Products of some dozens of rows: too many for registers, too few for the library to occupy a GPU.

The outputs are the side that the matrix units want long; the rows are filled up to 16, 32 or 64. A matrix with
few outputs leaves most processors idle, so its inputs are split too; the parts are left as they are, for the
norm that follows to add up.
"""

import triton
import triton.language as tl
from torch import Tensor

from dora_rl.engines.native.cuda.kernels.activation import gate
from dora_rl.engines.native.cuda.kernels.linear import precision
from dora_rl.engines.native.cuda.kernels.overlap import await_previous, let_next_start, overlaps
from dora_rl.engines.native.cuda.tiles import Tile


@triton.jit
def _weights(matrix, outputs, columns, NUM_OUTPUTS: tl.constexpr, NUM_INPUTS: tl.constexpr, IS_EVEN: tl.constexpr):
    places = matrix + outputs.to(tl.int64)[:, None] * NUM_INPUTS + columns[None, :]
    if IS_EVEN:
        return tl.load(places)
    return tl.load(places, mask=(outputs < NUM_OUTPUTS)[:, None] & (columns < NUM_INPUTS)[None, :], other=0.0)


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
    sums = tl.zeros([BLOCK_N, ROWS], dtype=tl.float32)
    sums_up = tl.zeros([BLOCK_N, ROWS], dtype=tl.float32)
    await_previous(OVERLAPS)
    for first in tl.range(0, SHARE, BLOCK_K, num_stages=STAGES):
        columns = part * SHARE + first + within
        inside = (rows < num_rows)[:, None] & (columns < NUM_INPUTS)[None, :]
        values = tl.load(inputs + rows[:, None] * NUM_INPUTS + columns[None, :], mask=inside, other=0.0)
        own = _weights(weight, outputs, columns, NUM_OUTPUTS, NUM_INPUTS, IS_EVEN)
        sums = tl.dot(own, tl.trans(values), sums, input_precision=PRECISION)
        if IS_GATED:
            own_up = _weights(up, outputs, columns, NUM_OUTPUTS, NUM_INPUTS, IS_EVEN)
            sums_up = tl.dot(own_up, tl.trans(values), sums_up, input_precision=PRECISION)
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


NUM_PARTS = 4
"""That the inputs of a matrix with few outputs are split into."""
MAX_ROWS = 64


def tile_for(num_rows: int, *, is_gated: bool) -> Tile:
    """What measured best."""
    rows = max(16, triton.next_power_of_2(num_rows))
    if is_gated:
        return Tile(rows=rows, outputs=64, inputs=128, warps=4, stages=4)
    return Tile(rows=rows, outputs=64, inputs=128, warps=4, stages=4)


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
    num_parts = out.shape[0] if out.dim() == 3 else 1
    assert num_rows <= MAX_ROWS, f"{num_rows} rows"
    tile = tile or tile_for(num_rows, is_gated=is_gated)
    does_overlap = overlaps(inputs_TI)
    _tiled[(triton.cdiv(num_outputs, tile.outputs), num_parts)](
        inputs_TI,
        weight_OI,
        weight_OI if bias_O is None else bias_O,
        out,
        num_rows,
        NUM_OUTPUTS=num_outputs,
        NUM_INPUTS=num_inputs,
        HAS_BIAS=bias_O is not None,
        IS_GATED=is_gated,
        PARTS=num_parts,
        ROWS=tile.rows,
        BLOCK_N=tile.outputs,
        BLOCK_K=min(tile.inputs, max(16, triton.next_power_of_2(num_inputs))),
        STAGES=tile.stages,
        OVERLAPS=does_overlap,
        PRECISION=precision(weight_OI),
        num_warps=tile.warps,
        launch_pdl=does_overlap,
    )
