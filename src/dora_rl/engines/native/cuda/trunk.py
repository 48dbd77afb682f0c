"""The layers of the decoder over a batch of tokens, on buffers that never move.

Four ways to the same numbers, chosen by how many tokens there are and what was promised: `few` fuses norms,
gates and residuals into products that read each matrix once; `some` splits what would not occupy the device;
`many` leaves products to the library; `fixed` has one tile size for everything, so that no row's bits depend
on another row.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from dora_rl.engines.native.cuda.kernels import linear, tiled
from dora_rl.engines.native.cuda.kernels.activation import gated
from dora_rl.engines.native.cuda.kernels.embed import embed
from dora_rl.engines.native.cuda.kernels.experts import expert_linear, sort_by_expert
from dora_rl.engines.native.cuda.kernels.fixed import fixed_linear
from dora_rl.engines.native.cuda.kernels.norm import add_norm
from dora_rl.model.config import ModelConfig
from dora_rl.model.decoder import Block, Decoder, Mlp
from dora_rl.model.experts import ExpertMlp

Way = Literal["few", "some", "many", "fixed"]
Attend = Callable[[int, Tensor, Tensor], None]
"""Layer, fused queries, keys and values, and where the mixed values go."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokens:
    """What a pass computes, where its hidden states go."""

    tokens_T: Tensor
    slots_T: Tensor
    positions_T: Tensor
    hidden_TH: Tensor

    def __len__(self) -> int:
        return len(self.tokens_T)


def way_for(num_rows: int, model: ModelConfig) -> Way:
    """What measured best for so many decoded tokens."""
    if model.experts is not None or num_rows > tiled.MAX_ROWS:
        return "many"
    most_inputs = max(model.hidden_size, model.q_size, model.intermediate_size)
    return "few" if num_rows <= linear.MAX_ROWS and most_inputs <= linear.MAX_INPUTS else "some"


class Trunk:
    """Buffers for a number of tokens, and the layers over them."""

    def __init__(self, model: ModelConfig, num_tokens: int, dtype: torch.dtype, device: torch.device) -> None:
        self._model = model

        def empty(width: int) -> Tensor:
            # Zeros: rows that only fill a bucket are computed too, and NaN would be slow to debug.
            return torch.zeros(num_tokens, width, dtype=dtype, device=device)

        self._residual, self._normed, self._change = (empty(model.hidden_size) for _ in range(3))
        self._qkv, self._mixed = empty(model.q_size + 2 * model.kv_size), empty(model.q_size)
        parts_size = (tiled.NUM_PARTS, min(num_tokens, tiled.MAX_ROWS), model.hidden_size)
        self._parts = torch.zeros(parts_size, device=device)
        self._gate_up, self._gated = empty(2 * model.intermediate_size), empty(model.intermediate_size)

    @staticmethod
    def token_width(model: ModelConfig) -> int:
        """Values that a token needs in buffers."""
        return 3 * model.hidden_size + 2 * model.q_size + 2 * model.kv_size + 3 * model.intermediate_size

    @staticmethod
    def part_bytes(model: ModelConfig, num_tokens: int) -> int:
        """Of the parts of products that are split."""
        return tiled.NUM_PARTS * min(num_tokens, tiled.MAX_ROWS) * model.hidden_size * 4

    def run(self, decoder: Decoder, tokens: Tokens, drawn_S: Tensor, attend: Attend, way: Way) -> None:
        """The hidden state of each token after the final norm."""
        num = len(tokens)
        residual = self._residual[:num]
        embed(tokens.tokens_T, tokens.slots_T, drawn_S, decoder.embed.weight, residual)
        change: Tensor | None = None
        for layer, block in enumerate(decoder.layers):
            assert isinstance(block, Block)
            if way in ("few", "some"):
                assert isinstance(block.mlp, Mlp), "experts go the way of many"
                run = self._few if way == "few" else self._some
                change = run(layer, block, block.mlp, num, attend, change)
            else:
                change = self._many(layer, block, num, attend, way, change)
        add_norm(residual, change, decoder.norm.weight, decoder.norm.eps, tokens.hidden_TH)

    def _few(
        self, layer: int, block: Block, mlp: Mlp, num: int, attend: Attend, change: Tensor | None
    ) -> None:
        residual, qkv, mixed, inner = (
            each[:num] for each in (self._residual, self._qkv, self._mixed, self._gated)
        )
        attention = block.attention
        norm, eps = block.attention_norm.weight, block.attention_norm.eps
        linear.linear(residual, attention.qkv.weight, qkv, bias_O=attention.qkv.bias, norm_I=norm, eps=eps)
        attend(layer, qkv, mixed)
        linear.linear(mixed, attention.out.weight, residual, bias_O=attention.out.bias, residual_TO=residual)
        linear.linear(
            residual, mlp.gate_up.weight, inner, norm_I=block.mlp_norm.weight, eps=eps, is_gated=True
        )
        linear.linear(inner, mlp.down.weight, residual, residual_TO=residual)

    def _some(
        self, layer: int, block: Block, mlp: Mlp, num: int, attend: Attend, change: Tensor | None
    ) -> Tensor:
        residual, normed, qkv, mixed, inner = (
            each[:num] for each in (self._residual, self._normed, self._qkv, self._mixed, self._gated)
        )
        # As many rows as there are, not a stretch of more: parts lie end to end.
        parts = self._parts.view(-1)[: tiled.NUM_PARTS * num * residual.shape[1]].view(
            tiled.NUM_PARTS, num, -1
        )
        attention, eps = block.attention, block.attention_norm.eps
        add_norm(residual, change, block.attention_norm.weight, eps, normed)
        tiled.tiled_linear(normed, attention.qkv.weight, qkv, bias_O=attention.qkv.bias)
        attend(layer, qkv, mixed)
        tiled.tiled_linear(mixed, attention.out.weight, parts, bias_O=attention.out.bias)
        add_norm(residual, parts, block.mlp_norm.weight, eps, normed)
        tiled.tiled_linear(normed, mlp.gate_up.weight, inner, is_gated=True)
        tiled.tiled_linear(inner, mlp.down.weight, parts)
        return parts

    def _many(
        self, layer: int, block: Block, num: int, attend: Attend, way: Way, change: Tensor | None
    ) -> Tensor:
        residual, normed, qkv, mixed, out = (
            each[:num] for each in (self._residual, self._normed, self._qkv, self._mixed, self._change)
        )
        product = fixed_linear if way == "fixed" else library_linear
        attention, eps = block.attention, block.attention_norm.eps
        add_norm(residual, change, block.attention_norm.weight, eps, normed)
        product(normed, attention.qkv.weight, qkv, attention.qkv.bias)
        attend(layer, qkv, mixed)
        product(mixed, attention.out.weight, out, attention.out.bias)
        add_norm(residual, out, block.mlp_norm.weight, eps, normed)
        if isinstance(block.mlp, ExpertMlp):
            return _mixture(block.mlp, normed, way)
        gate_up, inner = self._gate_up[:num], self._gated[:num]
        product(normed, block.mlp.gate_up.weight, gate_up, None)
        gated(gate_up, inner)
        product(inner, block.mlp.down.weight, out, None)
        return out


def library_linear(
    inputs_TI: Tensor, weight_OI: Tensor, out_TO: Tensor, bias_O: Tensor | None = None
) -> None:
    """`inputs @ weight.T + bias` by the library."""
    if bias_O is None:
        torch.mm(inputs_TI, weight_OI.T, out=out_TO)
    else:
        torch.addmm(bias_O, inputs_TI, weight_OI.T, out=out_TO)


def mixture_width(model: ModelConfig) -> int:
    """Values of at most four bytes that a token needs while experts are mixed."""
    if model.experts is None:
        return 0
    # Both products of each expert, sorted and back in their order, and what is weighed in float32.
    own = 3 * model.experts.intermediate_size + 4 * model.hidden_size
    return model.experts.num_active * own + 4 * model.experts.num_experts + 2 * model.hidden_size


def _mixture(mlp: ExpertMlp, normed_TH: Tensor, way: Way) -> Tensor:
    """As the decoder's experts, without the host having to know how many rows each one gets."""
    scores = normed_TH.new_empty(len(normed_TH), mlp.experts.num_experts)
    (fixed_linear if way == "fixed" else library_linear)(normed_TH, mlp.router.weight, scores)
    weights_TA, experts_TA = mlp.choose(scores)
    routing = sort_by_expert(experts_TA, mlp.experts.num_experts)
    num_rows = experts_TA.numel()
    gate_up = normed_TH.new_empty(num_rows, mlp.gate_up.shape[1])
    expert_linear(normed_TH, routing.order_N // mlp.experts.num_active, mlp.gate_up, routing, gate_up)
    inner = normed_TH.new_empty(num_rows, mlp.down.shape[2])
    gated(gate_up, inner)
    sorted_rows = normed_TH.new_empty(num_rows, mlp.down.shape[1])
    expert_linear(inner, torch.arange(num_rows, device=inner.device), mlp.down, routing, sorted_rows)
    outputs_TAH = torch.empty_like(sorted_rows).index_copy_(0, routing.order_N, sorted_rows)
    weighted = outputs_TAH.unflatten(0, experts_TA.shape).float() * weights_TA[..., None]
    mixed_TH: Tensor = weighted.sum(dim=1).to(normed_TH.dtype)
    return mixed_TH
