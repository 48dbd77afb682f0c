"""Products of one or two rows with a matrix `[outputs, inputs]`: it is read once, at the speed of memory.

What comes before and after rides along, because at this size a kernel's start costs as much as its work: the
norm of the input, the bias, the gate of an MLP, the residual addition. Each program owns a few outputs; their
weights stay in its registers, on their way before the input is ready, and meet one row after the other.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from dora_rl.engines.native.cuda.kernels.activation import gate
from dora_rl.engines.native.cuda.kernels.overlap import await_previous, let_next_start, overlaps

MAX_ROWS = 2
MAX_AT_ONCE = 4096
"""Most inputs held at once: more would not fit a program's registers."""
MAX_INPUTS = 32768
"""Most inputs without norm or gate: they are taken one stretch after the other."""
_LONG_OUTPUTS = 4


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
    """Turn sums into what is stored, rounding where the decoder rounds."""
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
def _linear(
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
    ROWS: tl.constexpr,
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
    for row in tl.static_range(ROWS):
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
def _long_linear(
    inputs,
    weight,
    bias,
    residual,
    out,
    NUM_OUTPUTS: tl.constexpr,
    NUM_INPUTS: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    HAS_RESIDUAL: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    OVERLAPS: tl.constexpr,
):
    let_next_start(OVERLAPS)
    outputs = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    columns, rows = tl.arange(0, BLOCK_K), tl.arange(0, ROWS)
    weights = _chunk(weight, outputs, 0, NUM_OUTPUTS, NUM_INPUTS, BLOCK_K)
    sums = tl.zeros([ROWS, BLOCK_N], dtype=tl.float32)
    await_previous(OVERLAPS)
    for first in tl.static_range(0, NUM_INPUTS, BLOCK_K):
        if first > 0:
            weights = _chunk(weight, outputs, first, NUM_OUTPUTS, NUM_INPUTS, BLOCK_K)
        for row in tl.static_range(ROWS):
            inside = first + columns < NUM_INPUTS
            values = tl.load(inputs + row * NUM_INPUTS + first + columns, mask=inside, other=0.0)
            added = tl.sum(weights.to(tl.float32) * values.to(tl.float32)[None, :], axis=1)
            sums += tl.where((rows == row)[:, None], added[None, :], 0.0)
    inside = (rows[:, None] < ROWS) & (outputs < NUM_OUTPUTS)[None, :]
    places = rows[:, None] * NUM_OUTPUTS + outputs[None, :]
    dtype = out.dtype.element_ty
    if HAS_BIAS:
        sums += tl.load(bias + outputs, mask=outputs < NUM_OUTPUTS, other=0.0).to(tl.float32)[None, :]
    result = sums.to(dtype)
    if HAS_RESIDUAL:
        before = tl.load(residual + places, mask=inside, other=0.0).to(tl.float32)
        result = (before + result.to(tl.float32)).to(dtype)
    tl.store(out + places, result, mask=inside)


def _long(
    inputs_TI: Tensor, weight_OI: Tensor, out_TO: Tensor, bias_O: Tensor | None, residual_TO: Tensor | None
) -> None:
    (num_rows, num_inputs), num_outputs = inputs_TI.shape, out_TO.shape[1]
    does_overlap = overlaps(inputs_TI)
    _long_linear[(triton.cdiv(num_outputs, _LONG_OUTPUTS),)](
        inputs_TI,
        weight_OI,
        weight_OI if bias_O is None else bias_O,
        out_TO if residual_TO is None else residual_TO,
        out_TO,
        NUM_OUTPUTS=num_outputs,
        NUM_INPUTS=num_inputs,
        HAS_BIAS=bias_O is not None,
        HAS_RESIDUAL=residual_TO is not None,
        ROWS=num_rows,
        BLOCK_N=_LONG_OUTPUTS,
        BLOCK_K=MAX_AT_ONCE,
        OVERLAPS=does_overlap,
        num_warps=4,
        launch_pdl=does_overlap,
    )


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
) -> None:
    """`inputs @ weight.T`.

    `out` may be the residual. A gated weight has the rows of the gate, then those of up.
    """
    num_rows, num_inputs = inputs_TI.shape
    num_outputs = out_TO.shape[1]
    assert num_rows <= MAX_ROWS, f"{num_rows} rows"
    if num_inputs > MAX_AT_ONCE:
        assert num_inputs <= MAX_INPUTS, f"{num_inputs} inputs"
        assert norm_I is None, "a norm needs all inputs at once"
        assert not is_gated, "a gate needs all inputs at once"
        _long(inputs_TI, weight_OI, out_TO, bias_O, residual_TO)
        return
    does_overlap = overlaps(inputs_TI)
    block_n = 8 if num_inputs <= 1024 and not is_gated else 4
    _linear[(triton.cdiv(num_outputs, block_n),)](
        inputs_TI,
        weight_OI,
        weight_OI if bias_O is None else bias_O,
        weight_OI if norm_I is None else norm_I,
        out_TO if residual_TO is None else residual_TO,
        out_TO,
        num_rows,
        eps,
        NUM_OUTPUTS=num_outputs,
        NUM_INPUTS=num_inputs,
        HAS_NORM=norm_I is not None,
        HAS_BIAS=bias_O is not None,
        HAS_RESIDUAL=residual_TO is not None,
        IS_GATED=is_gated,
        ROWS=num_rows,
        BLOCK_N=block_n,
        BLOCK_K=triton.next_power_of_2(num_inputs),
        OVERLAPS=does_overlap,
        num_warps=4,
        launch_pdl=does_overlap,
    )


def precision(tensor: Tensor) -> str:
    """The precision of Triton's products: float32 is not shortened; other dtypes have no choice."""
    return "ieee" if tensor.dtype == torch.float32 else "tf32"
