"""The experts of one or two rows: as `linear`, each matrix read once, norm, gate and residual inside.

Which experts are a row's is found by every program by itself out of the router's scores: that takes less time
than the start of another kernel.
"""

import triton
import triton.language as tl
from torch import Tensor

from dora_rl.engines.native.cuda.kernels.activation import gate
from dora_rl.engines.native.cuda.kernels.overlap import await_previous, let_next_start, overlaps
from dora_rl.engines.native.cuda.kernels.routing import ranked, shares_of


@triton.jit
def _weights(
    matrix, outputs, columns, NUM_OUTPUTS: tl.constexpr, NUM_INPUTS: tl.constexpr
):
    inside = (outputs < NUM_OUTPUTS)[:, None] & (columns < NUM_INPUTS)[None, :]
    return tl.load(matrix + outputs[:, None] * NUM_INPUTS + columns[None, :], mask=inside, other=0.0)


@triton.jit
def _gate_up(
    inputs,
    norm_weight,
    scores,
    weight,
    shares_out,
    experts_out,
    out,
    eps,
    NUM_EXPERTS: tl.constexpr,
    NUM_ACTIVE: tl.constexpr,
    IS_NORMALISED: tl.constexpr,
    NUM_OUTPUTS: tl.constexpr,
    NUM_INPUTS: tl.constexpr,
    BLOCK_E: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    OVERLAPS: tl.constexpr,
):
    let_next_start(OVERLAPS)
    row, rank = tl.program_id(2), tl.program_id(1)
    outputs = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    columns, ids = tl.arange(0, BLOCK_K), tl.arange(0, BLOCK_E)
    norm = tl.load(norm_weight + columns, mask=columns < NUM_INPUTS, other=0.0).to(tl.float32)
    await_previous(OVERLAPS)
    line = scores + row * NUM_EXPERTS
    own_scores = tl.load(line + ids, mask=ids < NUM_EXPERTS, other=float("-inf")).to(tl.float32)
    values = tl.load(inputs + row * NUM_INPUTS + columns, mask=columns < NUM_INPUTS, other=0.0).to(tl.float32)
    ranks = ranked(own_scores, ids, scores.dtype.element_ty, BLOCK_E)
    expert = tl.sum(tl.where(ranks == rank, ids, 0), axis=0).to(tl.int64)
    matrix = weight + expert * (2 * NUM_OUTPUTS * NUM_INPUTS)
    weights = _weights(matrix, outputs, columns, NUM_OUTPUTS, NUM_INPUTS)
    weights_up = _weights(matrix + NUM_OUTPUTS * NUM_INPUTS, outputs, columns, NUM_OUTPUTS, NUM_INPUTS)
    pair = row * NUM_ACTIVE + rank
    if tl.program_id(0) == 0:
        shares = shares_of(own_scores, ranks, NUM_ACTIVE, IS_NORMALISED)
        tl.store(experts_out + pair, expert.to(tl.int32))
        tl.store(shares_out + pair, tl.sum(tl.where(ranks == rank, shares, 0.0), axis=0))
    scale = tl.rsqrt(tl.sum(values * values, axis=0) / NUM_INPUTS + eps)
    values = (values * scale * norm).to(weight.dtype.element_ty).to(tl.float32)
    dtype = out.dtype.element_ty
    sums = tl.sum(weights.to(tl.float32) * values[None, :], axis=1).to(dtype)
    sums_up = tl.sum(weights_up.to(tl.float32) * values[None, :], axis=1).to(dtype)
    tl.store(out + pair * NUM_OUTPUTS + outputs, gate(sums, sums_up), mask=outputs < NUM_OUTPUTS)


@triton.jit
def _down(
    inputs,
    weight,
    shares,
    experts,
    residual,
    NUM_ACTIVE: tl.constexpr,
    NUM_OUTPUTS: tl.constexpr,
    NUM_INPUTS: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    OVERLAPS: tl.constexpr,
):
    let_next_start(OVERLAPS)
    row = tl.program_id(1)
    outputs, columns = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N), tl.arange(0, BLOCK_K)
    is_output, is_column = outputs < NUM_OUTPUTS, columns < NUM_INPUTS
    dtype = residual.dtype.element_ty
    mixed = tl.zeros([BLOCK_N], dtype=tl.float32)
    await_previous(OVERLAPS)
    for rank in tl.static_range(NUM_ACTIVE):
        pair = row * NUM_ACTIVE + rank
        matrix = weight + tl.load(experts + pair).to(tl.int64) * (NUM_OUTPUTS * NUM_INPUTS)
        weights = _weights(matrix, outputs, columns, NUM_OUTPUTS, NUM_INPUTS).to(tl.float32)
        values = tl.load(inputs + pair * NUM_INPUTS + columns, mask=is_column, other=0.0).to(tl.float32)
        sums = tl.sum(weights * values[None, :], axis=1).to(dtype).to(tl.float32)
        mixed += sums * tl.load(shares + pair)
    places = residual + row * NUM_OUTPUTS + outputs
    before = tl.load(places, mask=is_output, other=0.0).to(tl.float32)
    tl.store(places, (before + mixed.to(dtype).to(tl.float32)).to(dtype), mask=is_output)


def expert_gate_up(
    inputs_TI: Tensor,
    norm_I: Tensor,
    eps: float,
    scores_TE: Tensor,
    weight_EOI: Tensor,
    shares_TA: Tensor,
    experts_TA: Tensor,
    out_NO: Tensor,
    *,
    is_normalised: bool,
    block_n: int = 4,
    num_warps: int = 4,
) -> None:
    """`silu(gate) * up` of the norm of each row for each of its experts; and which they are, and their shares."""
    num_rows, num_inputs = inputs_TI.shape
    num_outputs, num_experts, num_active = out_NO.shape[1], scores_TE.shape[1], experts_TA.shape[1]
    does_overlap = overlaps(inputs_TI)
    _gate_up[(triton.cdiv(num_outputs, block_n), num_active, num_rows)](
        inputs_TI,
        norm_I,
        scores_TE,
        weight_EOI,
        shares_TA,
        experts_TA,
        out_NO,
        eps,
        NUM_EXPERTS=num_experts,
        NUM_ACTIVE=num_active,
        IS_NORMALISED=is_normalised,
        NUM_OUTPUTS=num_outputs,
        NUM_INPUTS=num_inputs,
        BLOCK_E=triton.next_power_of_2(num_experts),
        BLOCK_N=block_n,
        BLOCK_K=triton.next_power_of_2(num_inputs),
        OVERLAPS=does_overlap,
        num_warps=num_warps,
        launch_pdl=does_overlap,
    )


def expert_down(
    inputs_NI: Tensor,
    weight_EOI: Tensor,
    shares_TA: Tensor,
    experts_TA: Tensor,
    residual_TO: Tensor,
    *,
    block_n: int = 4,
    num_warps: int = 4,
) -> None:
    """Add to the residual what each row's experts make of their rows, by their shares."""
    num_rows, num_outputs = residual_TO.shape
    num_inputs = inputs_NI.shape[1]
    does_overlap = overlaps(inputs_NI)
    _down[(triton.cdiv(num_outputs, block_n), num_rows)](
        inputs_NI,
        weight_EOI,
        shares_TA,
        experts_TA,
        residual_TO,
        NUM_ACTIVE=experts_TA.shape[1],
        NUM_OUTPUTS=num_outputs,
        NUM_INPUTS=num_inputs,
        BLOCK_N=block_n,
        BLOCK_K=triton.next_power_of_2(num_inputs),
        OVERLAPS=does_overlap,
        num_warps=num_warps,
        launch_pdl=does_overlap,
    )
