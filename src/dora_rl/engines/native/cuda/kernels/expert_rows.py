"""The experts of one or two rows: as `linear`, each matrix read once, norm, gate and residual inside.

Which experts are a row's is found by every program by itself out of the router's scores: that takes less time
than the start of another kernel.
"""

import triton
import triton.language as tl
from torch import Tensor

from dora_rl.engines.native.cuda.kernels.activation import gate
from dora_rl.engines.native.cuda.kernels.overlap import await_previous, let_next_start, overlaps
from dora_rl.engines.native.cuda.kernels.router import ranked, shares_of

_GATED_OUTPUTS, _OUTPUTS = 8, 4
"""Outputs of a program: what measured best with experts of 768 of 2048."""


@triton.jit
def _weights(matrix, outputs, columns, NUM_OUTPUTS: tl.constexpr, NUM_INPUTS: tl.constexpr):
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
    BLOCK_A: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    OVERLAPS: tl.constexpr,
):
    """All experts of a row at once, and one sum at the end: no load waits for another expert's sum."""
    let_next_start(OVERLAPS)
    row = tl.program_id(1)
    outputs, within = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N), tl.arange(0, BLOCK_K)
    ranks = tl.arange(0, BLOCK_A)
    is_active, is_output = ranks < NUM_ACTIVE, outputs < NUM_OUTPUTS
    pairs = row * NUM_ACTIVE + ranks
    places = residual + row * NUM_OUTPUTS + outputs
    await_previous(OVERLAPS)
    chosen = tl.load(experts + pairs, mask=is_active, other=0).to(tl.int64)
    own_shares = tl.load(shares + pairs, mask=is_active, other=0.0)
    before = tl.load(places, mask=is_output, other=0.0)
    lines = weight + (chosen[:, None] * NUM_OUTPUTS + outputs[None, :]) * NUM_INPUTS
    is_line = is_active[:, None] & is_output[None, :]
    sums = tl.zeros([BLOCK_A, BLOCK_N, BLOCK_K], dtype=tl.float32)
    for first in tl.static_range(0, NUM_INPUTS, BLOCK_K):
        columns = first + within
        is_column = columns < NUM_INPUTS
        inside = is_line[:, :, None] & is_column[None, None, :]
        weights = tl.load(lines[:, :, None] + columns[None, None, :], mask=inside, other=0.0)
        values = tl.load(
            inputs + pairs[:, None] * NUM_INPUTS + columns[None, :],
            mask=is_active[:, None] & is_column[None, :],
            other=0.0,
        )
        sums += weights.to(tl.float32) * values.to(tl.float32)[:, None, :]
    dtype = residual.dtype.element_ty
    rows = tl.sum(sums, axis=2).to(dtype).to(tl.float32)
    mixed = tl.sum(rows * own_shares[:, None], axis=0).to(dtype)
    tl.store(places, (before.to(tl.float32) + mixed.to(tl.float32)).to(dtype), mask=is_output)


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
) -> None:
    """`silu(gate) * up` of the norm of each row for each of its experts.

    Which they are, and their shares, are written down too.
    """
    num_rows, num_inputs = inputs_TI.shape
    num_outputs, num_experts, num_active = out_NO.shape[1], scores_TE.shape[1], experts_TA.shape[1]
    does_overlap = overlaps(inputs_TI)
    _gate_up[(triton.cdiv(num_outputs, _GATED_OUTPUTS), num_active, num_rows)](
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
        BLOCK_N=_GATED_OUTPUTS,
        BLOCK_K=triton.next_power_of_2(num_inputs),
        OVERLAPS=does_overlap,
        num_warps=4,
        launch_pdl=does_overlap,
    )


def expert_down(
    inputs_NI: Tensor,
    weight_EOI: Tensor,
    shares_TA: Tensor,
    experts_TA: Tensor,
    residual_TO: Tensor,
) -> None:
    """Add to the residual what each row's experts make of their rows, by their shares."""
    num_rows, num_outputs = residual_TO.shape
    num_inputs, num_active = inputs_NI.shape[1], experts_TA.shape[1]
    even = num_inputs & -num_inputs
    does_overlap = overlaps(inputs_NI)
    _down[(triton.cdiv(num_outputs, _OUTPUTS), num_rows)](
        inputs_NI,
        weight_EOI,
        shares_TA,
        experts_TA,
        residual_TO,
        NUM_ACTIVE=num_active,
        NUM_OUTPUTS=num_outputs,
        NUM_INPUTS=num_inputs,
        BLOCK_A=triton.next_power_of_2(num_active),
        BLOCK_N=_OUTPUTS,
        BLOCK_K=min(256, even if even >= 64 else triton.next_power_of_2(num_inputs)),
        OVERLAPS=does_overlap,
        num_warps=4,
        launch_pdl=does_overlap,
    )
