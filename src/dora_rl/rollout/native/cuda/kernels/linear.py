"""Products of few rows with a matrix `[outputs, inputs]`: the matrix is read once, at the speed of memory.

What comes before and after rides along, because at this size a kernel's start costs as much as its work: the
norm of the input, the bias, the gate of an MLP, the residual addition. Each program owns a few outputs and
reads their whole rows, so sums have one order.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from dora_rl.rollout.native.cuda.kernels.activation import gate

MAX_ROWS = 64


@triton.jit
def _scales(inputs, rows, num_rows, num_inputs, eps, BLOCK_K: tl.constexpr):
    """One over the root mean square of each row."""
    squares = tl.zeros([rows.shape[0], BLOCK_K], dtype=tl.float32)
    for first in range(0, num_inputs, BLOCK_K):
        columns = first + tl.arange(0, BLOCK_K)
        inside = (rows[:, None] < num_rows) & (columns[None, :] < num_inputs)
        values = tl.load(inputs + rows[:, None] * num_inputs + columns[None, :], mask=inside, other=0.0)
        squares += values.to(tl.float32) * values.to(tl.float32)
    return tl.rsqrt(tl.sum(squares, axis=1) / num_inputs + eps)


@triton.jit
def _linear(
    inputs,
    weight,
    bias,
    norm_weight,
    residual,
    out,
    num_rows,
    num_outputs,
    num_inputs,
    eps,
    HAS_NORM: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    HAS_RESIDUAL: tl.constexpr,
    IS_GATED: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    PRECISION: tl.constexpr,
):
    rows = tl.arange(0, BLOCK_M)
    outputs = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    is_row, is_output = rows < num_rows, outputs < num_outputs
    dtype = weight.dtype.element_ty
    if HAS_NORM:
        scales = _scales(inputs, rows, num_rows, num_inputs, eps, BLOCK_K)
    sums = tl.zeros([BLOCK_M, BLOCK_N], dtype=tl.float32)
    sums_up = tl.zeros([BLOCK_M, BLOCK_N], dtype=tl.float32)
    weight_rows = weight + outputs.to(tl.int64)[:, None] * num_inputs
    for first in range(0, num_inputs, BLOCK_K):
        columns = first + tl.arange(0, BLOCK_K)
        is_column = columns < num_inputs
        inside = is_output[:, None] & is_column[None, :]
        values = tl.load(
            inputs + rows[:, None] * num_inputs + columns[None, :],
            mask=is_row[:, None] & is_column[None, :],
            other=0.0,
        )
        weights = tl.load(weight_rows + columns[None, :], mask=inside, other=0.0)
        if HAS_NORM:
            own = tl.load(norm_weight + columns, mask=is_column, other=0.0).to(tl.float32)
            values = (values.to(tl.float32) * scales[:, None] * own[None, :]).to(dtype)
        sums = tl.dot(values, tl.trans(weights), sums, input_precision=PRECISION)
        if IS_GATED:
            up = tl.load(
                weight_rows + num_outputs.to(tl.int64) * num_inputs + columns[None, :], mask=inside, other=0.0
            )
            sums_up = tl.dot(values, tl.trans(up), sums_up, input_precision=PRECISION)
    result = sums.to(out.dtype.element_ty)
    if HAS_BIAS:
        added = tl.load(bias + outputs, mask=is_output, other=0.0).to(tl.float32)
        result = (sums + added[None, :]).to(out.dtype.element_ty)
    if IS_GATED:
        result = gate(result, sums_up.to(out.dtype.element_ty))
    places = rows[:, None] * num_outputs + outputs[None, :]
    inside = is_row[:, None] & is_output[None, :]
    if HAS_RESIDUAL:
        before = tl.load(residual + places, mask=inside, other=0.0).to(tl.float32)
        result = (before + result.to(tl.float32)).to(out.dtype.element_ty)
    tl.store(out + places, result, mask=inside)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tile:
    """How much a program of the kernel owns, and how many warps and loads in flight it has."""

    outputs: int
    inputs: int
    warps: int
    stages: int


def tile_for(num_rows: int, num_outputs: int, num_inputs: int) -> Tile:
    """Enough programs to occupy the memory, and enough bytes in flight in each."""
    if num_rows <= 16:
        return Tile(outputs=16 if num_outputs <= 4096 else 32, inputs=256, warps=4, stages=4)
    return Tile(outputs=32, inputs=128, warps=4, stages=4)


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
    """`inputs @ weight.T` for at most `MAX_ROWS` rows; `out` may be the residual. A gated weight has gate, then up."""
    num_rows, num_inputs = inputs_TI.shape
    num_outputs = out_TO.shape[1]
    tile = tile or tile_for(num_rows, num_outputs, num_inputs)
    _linear[(triton.cdiv(num_outputs, tile.outputs),)](
        inputs_TI,
        weight_OI,
        weight_OI if bias_O is None else bias_O,
        weight_OI if norm_I is None else norm_I,
        out_TO if residual_TO is None else residual_TO,
        out_TO,
        num_rows,
        num_outputs,
        num_inputs,
        eps,
        HAS_NORM=norm_I is not None,
        HAS_BIAS=bias_O is not None,
        HAS_RESIDUAL=residual_TO is not None,
        IS_GATED=is_gated,
        BLOCK_M=max(16, triton.next_power_of_2(num_rows)),
        BLOCK_N=tile.outputs,
        BLOCK_K=min(tile.inputs, max(16, triton.next_power_of_2(num_inputs))),
        PRECISION=precision(weight_OI),
        num_warps=tile.warps,
        num_stages=tile.stages,
    )


def precision(tensor: Tensor) -> str:
    """Float32 products are not shortened; others have no choice."""
    return "ieee" if tensor.dtype == torch.float32 else "tf32"
