"""The layers of the decoder over a batch of tokens, on buffers that never move.

Four ways to the same numbers, chosen by how many tokens there are and what was promised: `few` fuses norms,
gates and residuals into products that read each matrix once; `some` splits what would not occupy the device;
`many` leaves products to the library, split where that is quicker; `fixed` has one tile size for everything,
so that no row's bits depend on another row.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
from torch import Tensor, nn

from dora_rl.engines.native.cuda.kernels import library, linear, tiled
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
        # One buffer: no pass has both kinds of parts, of its own kernels and of the library.
        parts_bytes = self.part_bytes(model, num_tokens, dtype.itemsize)
        self._parts = torch.zeros(parts_bytes, dtype=torch.uint8, device=device)
        self._gate_up, self._gated = empty(2 * model.intermediate_size), empty(model.intermediate_size)
        experts = model.experts
        self._mixture = None if experts is None else Mixture(model, experts, num_tokens, dtype, device)

    @staticmethod
    def token_width(model: ModelConfig) -> int:
        """Number of values that one token needs in the buffers."""
        return 3 * model.hidden_size + 2 * model.q_size + 2 * model.kv_size + 3 * model.intermediate_size

    @staticmethod
    def part_bytes(model: ModelConfig, num_tokens: int, itemsize: int) -> int:
        """Bytes of the parts of products that are split."""
        own = tiled.num_parts(model.hidden_size) * min(num_tokens, tiled.MAX_ROWS) * 4
        of_library = library.MAX_PARTS * min(num_tokens, library.MAX_SPLIT_ROWS) * itemsize
        return max(own, of_library) * model.hidden_size

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
        attention_norm, mlp_norm = _norms_of(block)
        norm, eps = attention_norm.weight, attention_norm.eps
        linear.linear(residual, attention.qkv.weight, qkv, bias_O=attention.qkv.bias, norm_I=norm, eps=eps)
        attend(layer, qkv, mixed)
        linear.linear(mixed, attention.out.weight, residual, bias_O=attention.out.bias, residual_TO=residual)
        norm = mlp_norm.weight
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
        parts = self._parts_of(tiled.num_parts(residual.shape[1]), num, torch.float32)
        attention, mlp = block.attention, block.mlp
        attention_norm, mlp_norm = _norms_of(block)
        self._add_norm(residual, change, attention_norm, normed)
        tiled.tiled_linear(normed, attention.qkv.weight, qkv, bias_O=attention.qkv.bias)
        attend(layer, qkv, mixed)
        tiled.tiled_linear(mixed, attention.out.weight, parts, bias_O=attention.out.bias)
        self._add_norm(residual, LayerChange(values=parts), mlp_norm, normed)
        if isinstance(mlp, ExpertMlp):
            return self._experts.run(mlp, normed, is_split=True, is_fixed=False)
        tiled.tiled_linear(normed, mlp.gate_up.weight, inner, is_gated=True)
        tiled.tiled_linear(inner, mlp.down.weight, parts)
        return LayerChange(values=parts)

    def _many(
        self, layer: int, block: Block, num: int, attend: Attend, change: LayerChange | None, *, way: Way
    ) -> LayerChange:
        residual, normed, qkv, mixed = (
            each[:num] for each in (self._residual, self._normed, self._qkv, self._mixed)
        )
        product = fixed_linear if way == "fixed" else library.library_linear
        attention, mlp = block.attention, block.mlp
        attention_norm, mlp_norm = _norms_of(block)
        self._add_norm(residual, change, attention_norm, normed)
        product(normed, attention.qkv.weight, qkv, attention.qkv.bias)
        attend(layer, qkv, mixed)
        out = self._room_for(mixed, attention.out, way)
        product(mixed, attention.out.weight, out, attention.out.bias)
        self._add_norm(residual, LayerChange(values=out), mlp_norm, normed)
        if isinstance(mlp, ExpertMlp):
            return self._experts.run(mlp, normed, is_split=False, is_fixed=way == "fixed")
        gate_up, inner = self._gate_up[:num], self._gated[:num]
        product(normed, mlp.gate_up.weight, gate_up, None)
        gated(gate_up, inner)
        out = self._room_for(inner, mlp.down, way)
        product(inner, mlp.down.weight, out, None)
        return LayerChange(values=out)

    def _room_for(self, inputs_TI: Tensor, layer: nn.Linear, way: Way) -> Tensor:
        """Room for a product that is added to the residual: in parts where that measured best."""
        num = len(inputs_TI)
        may_split = way != "fixed" and layer.bias is None
        num_parts = library.parts_for(num, *layer.weight.shape) if may_split else 1
        if num_parts == 1:
            return self._change[:num]
        return self._parts_of(num_parts, num, self._change.dtype)

    def _parts_of(self, num_parts: int, num: int, dtype: torch.dtype) -> Tensor:
        """Room for so many parts of so many rows, which lie end to end."""
        width = self._change.shape[1]
        return self._parts.view(dtype)[: num_parts * num * width].view(num_parts, num, width)

    @property
    def _experts(self) -> Mixture:
        assert self._mixture is not None, "a decoder with experts has a configuration with experts"
        return self._mixture


def _norms_of(block: Block) -> tuple[RmsNorm, RmsNorm]:
    """The norms before attention and before the MLP."""
    attention_norm, mlp_norm = block.attention_norm, block.mlp_norm
    assert isinstance(attention_norm, RmsNorm), "kernels normalise what attention reads"
    assert isinstance(mlp_norm, RmsNorm), "kernels normalise what the MLP reads"
    return attention_norm, mlp_norm
