"""The mixture of experts over a batch of tokens, as the decoder's, on buffers that never move.

The host does not know how many rows each expert gets, and does not ask.
"""

from dataclasses import dataclass

import torch
import triton
from torch import Tensor

from dora_rl.engines.native.cuda.kernels import linear, tiled
from dora_rl.engines.native.cuda.kernels.expert_products import expert_linear
from dora_rl.engines.native.cuda.kernels.expert_rows import expert_down, expert_gate_up
from dora_rl.engines.native.cuda.kernels.fixed import fixed_linear
from dora_rl.engines.native.cuda.kernels.router import choose_experts, most_tiles, sort_by_expert
from dora_rl.engines.native.cuda.tiles import ExpertTiles, Tile, choices, experts_key
from dora_rl.model.config import Experts, ModelConfig
from dora_rl.model.experts import ExpertMlp

_FIXED_TILE = Tile(rows=16, outputs=64, inputs=64, warps=4, stages=4)
_FIXED = ExpertTiles(gate=_FIXED_TILE, down=_FIXED_TILE)
"""The tiles of experts in batch-invariant mode."""
_LEAST_ROWS = 16
"""Least rows of a tile."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerChange:
    """What a layer adds to the residual: the sum of parts, or rows of experts by their shares."""

    values: Tensor
    """`[tokens, width]`, `[parts, tokens, width]`, or with shares `[tokens, active, width]`."""
    shares_TA: Tensor | None = None


class Mixture:
    """Computes experts in several ways; holds the buffers for a number of tokens."""

    def __init__(
        self, model: ModelConfig, experts: Experts, num_tokens: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        self._experts = experts
        num_pairs = num_tokens * experts.num_active

        def zeros(*size: int, dtype: torch.dtype = dtype) -> Tensor:
            return torch.zeros(size, dtype=dtype, device=device)

        self._scores_TE = zeros(num_tokens, experts.num_experts)
        num_split = tiled.MAX_PARTS * min(num_tokens, tiled.MAX_ROWS) * experts.num_experts
        self._score_parts = zeros(num_split, dtype=torch.float32)
        self._shares_TA = zeros(num_tokens, experts.num_active, dtype=torch.float32)
        self._experts_TA = zeros(num_tokens, experts.num_active, dtype=torch.int32)
        self._order_N = zeros(num_pairs, dtype=torch.int32)
        self._tiles = zeros(most_tiles(num_pairs, experts.num_experts, _LEAST_ROWS), 3, dtype=torch.int32)
        self._inner_NI = zeros(num_pairs, experts.intermediate_size)
        self._outputs_NH = zeros(num_pairs, model.hidden_size)

    @staticmethod
    def num_bytes(model: ModelConfig, num_tokens: int, itemsize: int) -> int:
        """Bytes of the buffers."""
        experts = model.experts
        if experts is None:
            return 0
        num_pairs = num_tokens * experts.num_active
        rows = num_pairs * (experts.intermediate_size + model.hidden_size)
        parts = tiled.MAX_PARTS * min(num_tokens, tiled.MAX_ROWS) * experts.num_experts
        tiles = 3 * most_tiles(num_pairs, experts.num_experts, _LEAST_ROWS)
        return itemsize * (rows + num_tokens * experts.num_experts) + 4 * (parts + 3 * num_pairs + tiles)

    def add_few(self, mlp: ExpertMlp, residual_TH: Tensor, norm_H: Tensor, eps: float) -> None:
        """Mix the experts of one or two tokens, norm and residual included."""
        num, active = len(residual_TH), self._experts.num_active
        scores, shares, chosen = self._scores_TE[:num], self._shares_TA[:num], self._experts_TA[:num]
        inner = self._inner_NI[: num * active]
        linear.linear(residual_TH, mlp.router.weight, scores, norm_I=norm_H, eps=eps)
        is_normalised = self._experts.is_normalised
        expert_gate_up(
            residual_TH,
            norm_H,
            eps,
            scores,
            mlp.gate_up,
            shares,
            chosen,
            inner,
            is_normalised=is_normalised,
        )
        expert_down(inner, mlp.down, shares, chosen, residual_TH)

    def run(self, mlp: ExpertMlp, normed_TH: Tensor, *, is_split: bool, is_fixed: bool) -> LayerChange:
        """Mix the experts of any number of tokens; few of them may have the router's inputs split."""
        num, active = len(normed_TH), self._experts.num_active
        num_experts = self._experts.num_experts
        shares, chosen = self._shares_TA[:num], self._experts_TA[:num]
        scores = self._scores_TE[:num]
        if is_fixed:
            fixed_linear(normed_TH, mlp.router.weight, scores)
        elif is_split:
            size = tiled.MAX_PARTS * num * num_experts
            scores = self._score_parts[:size].view(tiled.MAX_PARTS, num, num_experts)
            tiled.tiled_linear(normed_TH, mlp.router.weight, scores)
        else:
            torch.mm(normed_TH, mlp.router.weight.T, out=scores)
        choose_experts(scores, normed_TH, shares, chosen, is_normalised=self._experts.is_normalised)
        tiles = _FIXED if is_fixed else _tiles_for(num * active, mlp)
        routing = sort_by_expert(chosen, num_experts, tiles.gate.rows, self._order_N, self._tiles)
        inner, outputs = self._inner_NI[: num * active], self._outputs_NH[: num * active]
        expert_linear(normed_TH, mlp.gate_up, routing, inner, tiles.gate, is_gated=True)
        expert_linear(inner, mlp.down, routing, outputs, tiles.down)
        return LayerChange(values=outputs.view(num, active, -1), shares_TA=shares)


def _tiles_for(num_pairs: int, mlp: ExpertMlp) -> ExpertTiles:
    """The tiles that tuning chose for the shape, else the usual ones."""
    num_experts, hidden, inner = mlp.down.shape
    chosen = choices().experts.get(experts_key(num_pairs, num_experts, inner, hidden))
    return chosen or usual_tiles(num_pairs, num_experts)


def usual_tiles(num_pairs: int, num_experts: int) -> ExpertTiles:
    """The tiles that measured best on an H200: one holds an expert's rows more often than not."""
    most = 3 * num_pairs // (2 * num_experts)
    rows = min(128, max(_LEAST_ROWS, triton.next_power_of_2(max(1, most))))
    if rows == 128:
        gate = Tile(rows=rows, outputs=128, inputs=64, warps=8, stages=4)
        return ExpertTiles(gate=gate, down=Tile(rows=rows, outputs=128, inputs=64, warps=4, stages=3))
    inputs, stages = (128, 3) if rows == 16 else (64, 4)
    gate = Tile(rows=rows, outputs=64, inputs=inputs, warps=4, stages=stages)
    is_wide = rows == 64
    down = Tile(rows=rows, outputs=128, inputs=64, warps=4, stages=3) if is_wide else gate
    return ExpertTiles(gate=gate, down=down)
