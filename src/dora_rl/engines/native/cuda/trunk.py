"""The layers of the decoder over a batch of tokens, on buffers that never move.

Four ways to the same numbers, chosen by how many tokens there are and what was promised: `few` fuses norms,
gates and residuals into products that read each matrix once; `some` splits what would not occupy the device;
`many` leaves products to the library; `fixed` has one tile size for everything, so that no row's bits depend
on another row.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
from torch import Tensor

from dora_rl.engines.native.cuda.kernels import linear, tiled
from dora_rl.engines.native.cuda.kernels.activation import gated
from dora_rl.engines.native.cuda.kernels.embed import embed
from dora_rl.engines.native.cuda.kernels.fixed import fixed_linear
from dora_rl.engines.native.cuda.kernels.norm import add_norm
from dora_rl.engines.native.cuda.mixture import LayerChange, Mixture
from dora_rl.model.config import ModelConfig
from dora_rl.model.decoder import Block, Decoder, RmsNorm
from dora_rl.model.experts import ExpertMlp

Way = Literal["few", "some", "many", "fixed"]
Attend = Callable[[int, Tensor, Tensor], None]
"""Attention of a layer: its number, fused queries, keys and values, and where the mixed values go."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokens:
    """The tokens of a pass, and where their hidden states go."""

    tokens_T: Tensor
    slots_T: Tensor
    positions_T: Tensor
    hidden_TH: Tensor

    def __len__(self) -> int:
        return len(self.tokens_T)


def way_for(num_rows: int, model: ModelConfig) -> Way:
    """The way that measured best for so many decoded tokens."""
    if num_rows > tiled.MAX_ROWS:
        return "many"
    return "few" if num_rows <= linear.MAX_ROWS and _fits_registers(model) else "some"


def _fits_registers(model: ModelConfig) -> bool:
    inners = {model.intermediate_size}
    if model.experts is not None:
        if model.experts.intermediate_size > linear.MAX_AT_ONCE:
            return False
        inners = {model.intermediate_size} if model.experts.dense_layers else set()
    at_once = max(model.hidden_size, model.q_size) <= linear.MAX_AT_ONCE
    return at_once and max(inners, default=0) <= linear.MAX_INPUTS


class Trunk:
    """Runs the decoder's layers; holds the buffers for a number of tokens."""

    def __init__(self, model: ModelConfig, num_tokens: int, dtype: torch.dtype, device: torch.device) -> None:
        self._model = model

        def empty(width: int) -> Tensor:
            # Zeros: rows that only fill a bucket are computed too, and NaN would be slow to debug.
            return torch.zeros(num_tokens, width, dtype=dtype, device=device)

        self._residual, self._normed, self._change = (empty(model.hidden_size) for _ in range(3))
        self._qkv, self._mixed = empty(model.q_size + 2 * model.kv_size), empty(model.q_size)
        parts_size = (tiled.num_parts(model.hidden_size), min(num_tokens, tiled.MAX_ROWS), model.hidden_size)
        self._parts = torch.zeros(parts_size, device=device)
        self._gate_up, self._gated = empty(2 * model.intermediate_size), empty(model.intermediate_size)
        experts = model.experts
        self._mixture = None if experts is None else Mixture(model, experts, num_tokens, dtype, device)

    @staticmethod
    def token_width(model: ModelConfig) -> int:
        """Number of values that one token needs in the buffers."""
        return 3 * model.hidden_size + 2 * model.q_size + 2 * model.kv_size + 3 * model.intermediate_size

    @staticmethod
    def part_bytes(model: ModelConfig, num_tokens: int) -> int:
        """Bytes of the parts of products that are split."""
        return tiled.num_parts(model.hidden_size) * min(num_tokens, tiled.MAX_ROWS) * model.hidden_size * 4

    def run(self, decoder: Decoder, tokens: Tokens, drawn_S: Tensor, attend: Attend, way: Way) -> None:
        """Compute the hidden state of each token after the final norm."""
        num = len(tokens)
        residual = self._residual[:num]
        embed(tokens.tokens_T, tokens.slots_T, drawn_S, decoder.embed.weight, residual)
        change: LayerChange | None = None
        run = {"few": self._few, "some": self._some}.get(way) or partial(self._many, way=way)
        for layer, block in enumerate(decoder.layers):
            assert isinstance(block, Block)
            change = run(layer, block, num, attend, change)
        self._add_norm(residual, change, decoder.norm, tokens.hidden_TH)

    @staticmethod
    def _add_norm(residual_TH: Tensor, change: LayerChange | None, norm: RmsNorm, out_TH: Tensor) -> None:
        if change is None:
            add_norm(residual_TH, None, norm.weight, norm.eps, out_TH)
        else:
            add_norm(residual_TH, change.values, norm.weight, norm.eps, out_TH, shares_TA=change.shares_TA)

    def _few(self, layer: int, block: Block, num: int, attend: Attend, change: LayerChange | None) -> None:
        residual, qkv, mixed, inner = (
            each[:num] for each in (self._residual, self._qkv, self._mixed, self._gated)
        )
        attention, mlp = block.attention, block.mlp
        norm, eps = block.attention_norm.weight, block.attention_norm.eps
        linear.linear(residual, attention.qkv.weight, qkv, bias_O=attention.qkv.bias, norm_I=norm, eps=eps)
        attend(layer, qkv, mixed)
        linear.linear(mixed, attention.out.weight, residual, bias_O=attention.out.bias, residual_TO=residual)
        norm = block.mlp_norm.weight
        if isinstance(mlp, ExpertMlp):
            self._experts.add_few(mlp, residual, norm, eps)
            return
        linear.linear(residual, mlp.gate_up.weight, inner, norm_I=norm, eps=eps, is_gated=True)
        linear.linear(inner, mlp.down.weight, residual, residual_TO=residual)

    def _some(
        self, layer: int, block: Block, num: int, attend: Attend, change: LayerChange | None
    ) -> LayerChange:
        residual, normed, qkv, mixed, inner = (
            each[:num] for each in (self._residual, self._normed, self._qkv, self._mixed, self._gated)
        )
        # As many rows as there are, not a stretch of more: parts lie end to end.
        num_parts = tiled.num_parts(residual.shape[1])
        parts = self._parts.view(-1)[: num_parts * residual.numel()].view(num_parts, num, -1)
        attention, mlp = block.attention, block.mlp
        self._add_norm(residual, change, block.attention_norm, normed)
        tiled.tiled_linear(normed, attention.qkv.weight, qkv, bias_O=attention.qkv.bias)
        attend(layer, qkv, mixed)
        tiled.tiled_linear(mixed, attention.out.weight, parts, bias_O=attention.out.bias)
        self._add_norm(residual, LayerChange(values=parts), block.mlp_norm, normed)
        if isinstance(mlp, ExpertMlp):
            return self._experts.run(mlp, normed, is_split=True, is_fixed=False)
        tiled.tiled_linear(normed, mlp.gate_up.weight, inner, is_gated=True)
        tiled.tiled_linear(inner, mlp.down.weight, parts)
        return LayerChange(values=parts)

    def _many(
        self, layer: int, block: Block, num: int, attend: Attend, change: LayerChange | None, *, way: Way
    ) -> LayerChange:
        residual, normed, qkv, mixed, out = (
            each[:num] for each in (self._residual, self._normed, self._qkv, self._mixed, self._change)
        )
        product = fixed_linear if way == "fixed" else library_linear
        attention, mlp = block.attention, block.mlp
        self._add_norm(residual, change, block.attention_norm, normed)
        product(normed, attention.qkv.weight, qkv, attention.qkv.bias)
        attend(layer, qkv, mixed)
        product(mixed, attention.out.weight, out, attention.out.bias)
        self._add_norm(residual, LayerChange(values=out), block.mlp_norm, normed)
        if isinstance(mlp, ExpertMlp):
            return self._experts.run(mlp, normed, is_split=False, is_fixed=way == "fixed")
        gate_up, inner = self._gate_up[:num], self._gated[:num]
        product(normed, mlp.gate_up.weight, gate_up, None)
        gated(gate_up, inner)
        product(inner, mlp.down.weight, out, None)
        return LayerChange(values=out)

    @property
    def _experts(self) -> Mixture:
        assert self._mixture is not None, "a decoder with experts has a configuration with experts"
        return self._mixture


def library_linear(
    inputs_TI: Tensor, weight_OI: Tensor, out_TO: Tensor, bias_O: Tensor | None = None
) -> None:
    """`inputs @ weight.T + bias` by the library."""
    if bias_O is None:
        torch.mm(inputs_TI, weight_OI.T, out=out_TO)
    else:
        torch.addmm(bias_O, inputs_TI, weight_OI.T, out=out_TO)
