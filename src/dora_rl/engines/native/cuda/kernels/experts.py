"""Products of rows with their own expert's matrix.

Rows are sorted by expert and cut into tiles that hold rows of one expert only; which tile is whose is worked
out on the device, so nothing waits for the router. A tile has a fixed size and a row's sums a fixed order:
its bits depend on no other row.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from dora_rl.engines.native.cuda.kernels.linear import precision

_ROWS, _OUTPUTS, _INPUTS = 16, 64, 64


@triton.jit
def _product(
    inputs,
    weight,
    out,
    sources,
    tile_experts,
    tile_rows,
    tile_sizes,
    num_outputs,
    num_inputs,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    PRECISION: tl.constexpr,
):
    tile = tl.program_id(1)
    size = tl.load(tile_sizes + tile)
    if size <= 0:
        return
    expert = tl.load(tile_experts + tile).to(tl.int64)
    rows = tl.load(tile_rows + tile).to(tl.int64) + tl.arange(0, BLOCK_M)
    is_row = tl.arange(0, BLOCK_M) < size
    outputs = (tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)).to(tl.int64)
    is_output = outputs < num_outputs
    origins = tl.load(sources + rows, mask=is_row, other=0).to(tl.int64)
    matrix = weight + expert * num_outputs * num_inputs
    sums = tl.zeros([BLOCK_M, BLOCK_N], dtype=tl.float32)
    for first in range(0, num_inputs, BLOCK_K):
        columns = first + tl.arange(0, BLOCK_K)
        is_column = columns < num_inputs
        values = tl.load(
            inputs + origins[:, None] * num_inputs + columns[None, :],
            mask=is_row[:, None] & is_column[None, :],
            other=0.0,
        )
        weights = tl.load(
            matrix + outputs[:, None] * num_inputs + columns[None, :],
            mask=is_output[:, None] & is_column[None, :],
            other=0.0,
        )
        sums = tl.dot(values, tl.trans(weights), sums, input_precision=PRECISION)
    inside = is_row[:, None] & is_output[None, :]
    tl.store(out + rows[:, None] * num_outputs + outputs[None, :], sums.to(out.dtype.element_ty), mask=inside)


@dataclass(frozen=True, slots=True, kw_only=True)
class Routing:
    """Rows sorted by expert, and the tiles they form. A tile of no rows is nobody's."""

    order_N: Tensor
    """Which (token, rank) pair each sorted row is."""
    tile_experts: Tensor
    tile_rows: Tensor
    tile_sizes: Tensor


def sort_by_expert(experts_TA: Tensor, num_experts: int) -> Routing:
    """Tiles for each expert's rows.

    Their number is bounded by what could be needed, whatever the router says.
    """
    flat = experts_TA.flatten()
    order_N = flat.argsort(stable=True)
    ids = torch.arange(num_experts, device=flat.device)
    counts_E = (flat[:, None] == ids).sum(dim=0)
    tiles_E = (counts_E + _ROWS - 1) // _ROWS
    last_tile_E, last_row_E = tiles_E.cumsum(0), counts_E.cumsum(0)
    num_tiles = min(len(flat), len(flat) // _ROWS + num_experts)
    tiles = torch.arange(num_tiles, device=flat.device)
    own = torch.searchsorted(last_tile_E, tiles, right=True).clamp_(max=num_experts - 1)
    within = (tiles - (last_tile_E - tiles_E)[own]) * _ROWS
    sizes = (counts_E[own] - within).clamp_(0, _ROWS)
    return Routing(
        order_N=order_N,
        tile_experts=own,
        tile_rows=(last_row_E - counts_E)[own] + within,
        tile_sizes=torch.where(tiles < last_tile_E[-1], sizes, 0),
    )


def expert_linear(
    inputs: Tensor, sources_N: Tensor, weight_EOI: Tensor, routing: Routing, out_NO: Tensor
) -> None:
    """`inputs[sources] @ weight[expert].T` for the sorted rows."""
    _, num_outputs, num_inputs = weight_EOI.shape
    grid = (triton.cdiv(num_outputs, _OUTPUTS), len(routing.tile_sizes))
    _product[grid](
        inputs,
        weight_EOI,
        out_NO,
        sources_N,
        routing.tile_experts,
        routing.tile_rows,
        routing.tile_sizes,
        num_outputs,
        num_inputs,
        BLOCK_M=_ROWS,
        BLOCK_N=_OUTPUTS,
        BLOCK_K=_INPUTS,
        PRECISION=precision(weight_EOI),
        num_warps=4,
        num_stages=4,
    )
