"""Products whose bits do not depend on how many rows there are: one tile size, one order of sums, always."""

import triton
import triton.language as tl
from torch import Tensor

from dora_rl.engines.native.cuda.kernels.linear import precision

_ROWS, _OUTPUTS, _INPUTS = 64, 64, 64


@triton.jit
def _product(
    inputs,
    weight,
    bias,
    out,
    num_rows,
    num_outputs,
    num_inputs,
    HAS_BIAS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    PRECISION: tl.constexpr,
):
    rows = (tl.program_id(1) * BLOCK_M + tl.arange(0, BLOCK_M)).to(tl.int64)
    outputs = (tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)).to(tl.int64)
    is_row, is_output = rows < num_rows, outputs < num_outputs
    sums = tl.zeros([BLOCK_M, BLOCK_N], dtype=tl.float32)
    for first in range(0, num_inputs, BLOCK_K):
        columns = first + tl.arange(0, BLOCK_K)
        is_column = columns < num_inputs
        values = tl.load(
            inputs + rows[:, None] * num_inputs + columns[None, :],
            mask=is_row[:, None] & is_column[None, :],
            other=0.0,
        )
        weights = tl.load(
            weight + outputs[:, None] * num_inputs + columns[None, :],
            mask=is_output[:, None] & is_column[None, :],
            other=0.0,
        )
        sums = tl.dot(values, tl.trans(weights), sums, input_precision=PRECISION)
    if HAS_BIAS:
        sums += tl.load(bias + outputs, mask=is_output, other=0.0).to(tl.float32)[None, :]
    inside = is_row[:, None] & is_output[None, :]
    tl.store(out + rows[:, None] * num_outputs + outputs[None, :], sums.to(out.dtype.element_ty), mask=inside)


def fixed_linear(inputs_TI: Tensor, weight_OI: Tensor, out_TO: Tensor, bias_O: Tensor | None = None) -> None:
    """`inputs @ weight.T + bias`."""
    num_rows, num_inputs = inputs_TI.shape
    num_outputs = out_TO.shape[1]
    grid = (triton.cdiv(num_outputs, _OUTPUTS), triton.cdiv(num_rows, _ROWS))
    _product[grid](
        inputs_TI,
        weight_OI,
        weight_OI if bias_O is None else bias_O,
        out_TO,
        num_rows,
        num_outputs,
        num_inputs,
        HAS_BIAS=bias_O is not None,
        BLOCK_M=_ROWS,
        BLOCK_N=_OUTPUTS,
        BLOCK_K=_INPUTS,
        PRECISION=precision(weight_OI),
        num_warps=4,
        num_stages=4,
    )
