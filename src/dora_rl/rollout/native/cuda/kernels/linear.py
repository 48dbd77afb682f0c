"""Products of few rows with a matrix `[outputs, inputs]`: the matrix is read once, at the speed of memory.

What comes before and after rides along, because at this size a kernel's start costs as much as its work: the
norm of the input, the bias, the gate of an MLP, the residual addition. Each program owns a few outputs and
reads their whole rows, so sums have one order. The first weights are on their way before the input is ready.

Two kernels: for a handful of rows weights stay in registers and are multiplied there, row by row; for more
they go through the matrix units, each warp multiplying a strip of the inputs of its own.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from dora_rl.rollout.native.cuda.kernels.activation import gate
from dora_rl.rollout.native.cuda.kernels.overlap import await_previous, let_next_start, overlaps

MAX_ROWS = 64
_HANDFUL = 2


@triton.jit
def _chunk(
    matrix,
    outputs,
    FIRST: tl.constexpr,
    NUM_OUTPUTS: tl.constexpr,
    NUM_INPUTS: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """Some outputs' weights for the inputs from `FIRST` on; zero beyond the last."""
    columns = FIRST + tl.arange(0, BLOCK_K)
    inside = (outputs[:, None] < NUM_OUTPUTS) & (columns[None, :] < NUM_INPUTS)
    return tl.load(
        matrix + outputs.to(tl.int64)[:, None] * NUM_INPUTS + columns[None, :], mask=inside, other=0.0
    )


@triton.jit
def _finish(
    sums,
    sums_up,
    bias,
    residual,
    place,
    outputs,
    inside,
    dtype: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    HAS_RESIDUAL: tl.constexpr,
    IS_GATED: tl.constexpr,
):
    """From sums to what is stored, rounding where the decoder rounds."""
    if HAS_BIAS:
        sums += tl.load(bias + outputs, mask=inside, other=0.0).to(tl.float32)
    result = sums.to(dtype)
    if IS_GATED:
        result = gate(result, sums_up.to(dtype))
    if HAS_RESIDUAL:
        before = tl.load(residual + place, mask=inside, other=0.0).to(tl.float32)
        result = (before + result.to(tl.float32)).to(dtype)
    return result


@triton.jit
def _handful(
    inputs,
    weight,
    bias,
    norm_weight,
    residual,
    out,
    num_rows,
    eps,
    NUM_OUTPUTS: tl.constexpr,
    NUM_INPUTS: tl.constexpr,
    HAS_NORM: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    HAS_RESIDUAL: tl.constexpr,
    IS_GATED: tl.constexpr,
    MAX_ROWS: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    OVERLAPS: tl.constexpr,
):
    let_next_start(OVERLAPS)
    outputs = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    columns = tl.arange(0, BLOCK_K)
    is_column, is_output = columns < NUM_INPUTS, outputs < NUM_OUTPUTS
    weights = _chunk(weight, outputs, 0, NUM_OUTPUTS, NUM_INPUTS, BLOCK_K)
    if IS_GATED:
        weights_up = _chunk(weight + NUM_OUTPUTS * NUM_INPUTS, outputs, 0, NUM_OUTPUTS, NUM_INPUTS, BLOCK_K)
    if HAS_NORM:
        own = tl.load(norm_weight + columns, mask=is_column, other=0.0).to(tl.float32)
    await_previous(OVERLAPS)
    dtype = out.dtype.element_ty
    for row in tl.static_range(MAX_ROWS):
        if row < num_rows:
            values = tl.load(inputs + row * NUM_INPUTS + columns, mask=is_column, other=0.0).to(tl.float32)
            if HAS_NORM:
                scale = tl.rsqrt(tl.sum(values * values, axis=0) / NUM_INPUTS + eps)
                values = (values * scale * own).to(weight.dtype.element_ty).to(tl.float32)
            sums = tl.sum(weights.to(tl.float32) * values[None, :], axis=1)
            sums_up = sums
            if IS_GATED:
                sums_up = tl.sum(weights_up.to(tl.float32) * values[None, :], axis=1)
            place = row * NUM_OUTPUTS + outputs
            result = _finish(
                sums,
                sums_up,
                bias,
                residual,
                place,
                outputs,
                is_output,
                dtype,
                HAS_BIAS,
                HAS_RESIDUAL,
                IS_GATED,
            )
            tl.store(out + place, result, mask=is_output)


@triton.jit
def _strips(
    matrix, lines, first, is_line, NUM_INPUTS: tl.constexpr, WARPS: tl.constexpr, BLOCK_K: tl.constexpr
):
    """`[warps, lines, BLOCK_K]`: of each line the next inputs of each warp's strip, zero beyond the last."""
    STRIP: tl.constexpr = (NUM_INPUTS + WARPS * BLOCK_K - 1) // (WARPS * BLOCK_K) * BLOCK_K
    columns = (tl.arange(0, WARPS) * STRIP)[:, None] + first + tl.arange(0, BLOCK_K)[None, :]
    inside = is_line[None, :, None] & (columns < NUM_INPUTS)[:, None, :]
    places = lines.to(tl.int64)[None, :, None] * NUM_INPUTS + columns[:, None, :]
    return tl.load(matrix + places, mask=inside, other=0.0)


@triton.jit
def _squares(
    inputs,
    rows,
    is_row,
    NUM_INPUTS: tl.constexpr,
    WARPS: tl.constexpr,
    BLOCK_K: tl.constexpr,
    STRIP: tl.constexpr,
):
    """The sum of squares of each row."""
    sums = tl.zeros([rows.shape[0]], dtype=tl.float32)
    for first in tl.static_range(0, STRIP, BLOCK_K):
        values = _strips(inputs, rows, first, is_row, NUM_INPUTS, WARPS, BLOCK_K).to(tl.float32)
        sums += tl.sum(tl.sum(values * values, axis=2), axis=0)
    return sums


@triton.jit
def _normed(
    values,
    scales,
    norm_weight,
    first,
    dtype: tl.constexpr,
    NUM_INPUTS: tl.constexpr,
    WARPS: tl.constexpr,
    BLOCK_K: tl.constexpr,
    STRIP: tl.constexpr,
):
    columns = (tl.arange(0, WARPS) * STRIP)[:, None] + first + tl.arange(0, BLOCK_K)[None, :]
    own = tl.load(norm_weight + columns, mask=columns < NUM_INPUTS, other=0.0).to(tl.float32)
    return (values.to(tl.float32) * scales[None, :, None] * own[:, None, :]).to(dtype)


@triton.jit
def _several(
    inputs,
    weight,
    bias,
    norm_weight,
    residual,
    out,
    num_rows,
    eps,
    NUM_OUTPUTS: tl.constexpr,
    NUM_INPUTS: tl.constexpr,
    HAS_NORM: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    HAS_RESIDUAL: tl.constexpr,
    IS_GATED: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    WARPS: tl.constexpr,
    OVERLAPS: tl.constexpr,
    PRECISION: tl.constexpr,
):
    let_next_start(OVERLAPS)
    STRIP: tl.constexpr = (NUM_INPUTS + WARPS * BLOCK_K - 1) // (WARPS * BLOCK_K) * BLOCK_K
    rows = tl.arange(0, BLOCK_M)
    outputs = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    is_row, is_output = rows < num_rows, outputs < NUM_OUTPUTS
    dtype = weight.dtype.element_ty
    up = weight + NUM_OUTPUTS * NUM_INPUTS
    weights = _strips(weight, outputs, 0, is_output, NUM_INPUTS, WARPS, BLOCK_K)
    weights_up = weights
    if IS_GATED:
        weights_up = _strips(up, outputs, 0, is_output, NUM_INPUTS, WARPS, BLOCK_K)
    await_previous(OVERLAPS)
    scales = tl.zeros([BLOCK_M], dtype=tl.float32)
    if HAS_NORM:
        squares = _squares(inputs, rows, is_row, NUM_INPUTS, WARPS, BLOCK_K, STRIP)
        scales = tl.rsqrt(squares / NUM_INPUTS + eps)
    sums = tl.zeros([WARPS, BLOCK_M, BLOCK_N], dtype=tl.float32)
    sums_up = tl.zeros([WARPS, BLOCK_M, BLOCK_N], dtype=tl.float32)
    for first in tl.static_range(0, STRIP, BLOCK_K):
        if first > 0:
            weights = _strips(weight, outputs, first, is_output, NUM_INPUTS, WARPS, BLOCK_K)
            if IS_GATED:
                weights_up = _strips(up, outputs, first, is_output, NUM_INPUTS, WARPS, BLOCK_K)
        values = _strips(inputs, rows, first, is_row, NUM_INPUTS, WARPS, BLOCK_K)
        if HAS_NORM:
            values = _normed(values, scales, norm_weight, first, dtype, NUM_INPUTS, WARPS, BLOCK_K, STRIP)
        sums = tl.dot(values, tl.permute(weights, (0, 2, 1)), sums, input_precision=PRECISION)
        if IS_GATED:
            sums_up = tl.dot(values, tl.permute(weights_up, (0, 2, 1)), sums_up, input_precision=PRECISION)
    place = rows[:, None] * NUM_OUTPUTS + outputs[None, :]
    inside = is_row[:, None] & is_output[None, :]
    result = _finish(
        tl.sum(sums, axis=0),
        tl.sum(sums_up, axis=0),
        bias,
        residual,
        place,
        outputs[None, :],
        inside,
        out.dtype.element_ty,
        HAS_BIAS,
        HAS_RESIDUAL,
        IS_GATED,
    )
    tl.store(out + place, result, mask=inside)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tile:
    """Outputs of a program, inputs that each of its warps takes at a time, and its warps."""

    outputs: int
    inputs: int
    warps: int


def tile_for(num_rows: int, num_outputs: int, num_inputs: int) -> Tile:
    """Enough programs to occupy the memory, and enough bytes in flight in each."""
    if _is_handful(num_rows, num_inputs):
        return Tile(outputs=8 if num_inputs <= 1024 else 4, inputs=num_inputs, warps=4)
    return Tile(outputs=16, inputs=256, warps=4)


def _is_handful(num_rows: int, num_inputs: int) -> bool:
    """Whether the weights of a program fit its registers, and rows are few enough to go one by one."""
    return num_rows <= _HANDFUL and num_inputs <= 4096


def linear(
    inputs_TI: Tensor,
    weight_OI: Tensor,
    out_TO: Tensor,
    *,
    bias_O: Tensor | None = None,
    norm_I: Tensor | None = None,
    eps: float = 0.0,
    residual_TO: Tensor | None = None,
    is_gated: bool = False,
    tile: Tile | None = None,
) -> None:
    """`inputs @ weight.T` for at most `MAX_ROWS` rows.

    `out` may be the residual. A gated weight has gate, then up.
    """
    num_rows, num_inputs = inputs_TI.shape
    num_outputs = out_TO.shape[1]
    tile = tile or tile_for(num_rows, num_outputs, num_inputs)
    does_overlap = overlaps(inputs_TI)
    arguments = (
        inputs_TI,
        weight_OI,
        weight_OI if bias_O is None else bias_O,
        weight_OI if norm_I is None else norm_I,
        out_TO if residual_TO is None else residual_TO,
        out_TO,
        num_rows,
        eps,
    )
    options = {
        "NUM_OUTPUTS": num_outputs,
        "NUM_INPUTS": num_inputs,
        "HAS_NORM": norm_I is not None,
        "HAS_BIAS": bias_O is not None,
        "HAS_RESIDUAL": residual_TO is not None,
        "IS_GATED": is_gated,
        "BLOCK_N": tile.outputs,
        "OVERLAPS": does_overlap,
        "num_warps": tile.warps,
        "launch_pdl": does_overlap,
    }
    grid = (triton.cdiv(num_outputs, tile.outputs),)
    most_inputs = max(16, triton.next_power_of_2(num_inputs))
    if _is_handful(num_rows, num_inputs):
        _handful[grid](*arguments, MAX_ROWS=triton.next_power_of_2(num_rows), BLOCK_K=most_inputs, **options)
    else:
        _several[grid](
            *arguments,
            BLOCK_M=max(16, triton.next_power_of_2(num_rows)),
            BLOCK_K=min(tile.inputs, max(16, most_inputs // tile.warps)),
            WARPS=tile.warps,
            PRECISION=precision(weight_OI),
            **options,
        )


def precision(tensor: Tensor) -> str:
    """Float32 products are not shortened; others have no choice."""
    return "ieee" if tensor.dtype == torch.float32 else "tf32"
