"""The one parameter layout of engine and trainer, and where each published tensor lies in it.

Fused where the forward pass multiplies once: `qkv` holds the rows of queries, keys, values; `gate_up` those
of gate, then up; experts are stacked along a first axis, as a grouped product wants them. A published
tensor is therefore a run of rows of one parameter: a Piece. The pieces of a model tile its parameters
exactly, so copying along them loses nothing in either direction.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dora_rl.model.config import Experts, ModelConfig
from dora_rl.model.families import NormPlace

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """One published tensor, and the rows of the parameter that hold it."""

    name: str
    """The published name, for example `model.layers.0.self_attn.k_proj.weight`."""
    parameter: str
    """The name in the Decoder, for example `layers.0.attention.qkv.weight`."""
    shape: tuple[int, ...]
    first_row: int = 0
    expert: int | None = None
    """The index along the first axis of a parameter that stacks experts."""

    def of(self, parameter: "Tensor") -> "Tensor":
        """The view of the parameter that is this published tensor."""
        rows = parameter if self.expert is None else parameter[self.expert]
        return rows[self.first_row : self.first_row + self.shape[0]]


_NORMS: dict[NormPlace, dict[str, str]] = {
    "before": {"input_layernorm": "attention_norm", "post_attention_layernorm": "mlp_norm"},
    "after": {
        "post_attention_layernorm": "attention_change_norm",
        "post_feedforward_layernorm": "mlp_change_norm",
    },
    "around": {
        "input_layernorm": "attention_norm",
        "post_attention_layernorm": "attention_change_norm",
        "pre_feedforward_layernorm": "mlp_norm",
        "post_feedforward_layernorm": "mlp_change_norm",
    },
}
"""Published names of a layer's norms, and our own."""


def pieces(config: ModelConfig) -> Iterator[Piece]:
    """Every published tensor of the model, in the order of the forward pass."""
    yield _whole("model.embed_tokens.weight", "embed.weight", config.vocab_size, config.hidden_size)
    for layer in range(config.num_layers):
        theirs, ours = f"model.layers.{layer}", f"layers.{layer}"
        yield from _norms(config, "attention", theirs, ours)
        yield from _attention(config, f"{theirs}.self_attn", f"{ours}.attention")
        yield from _norms(config, "mlp", theirs, ours)
        experts = config.experts_of(layer)
        if experts is None:
            yield from _mlp(config, f"{theirs}.mlp", f"{ours}.mlp")
        else:
            yield from _experts(config, experts, f"{theirs}.mlp", f"{ours}.mlp")
    yield _whole("model.norm.weight", "norm.weight", config.hidden_size)
    if not config.is_tied:
        yield _whole("lm_head.weight", "head.weight", config.vocab_size, config.hidden_size)


def _norms(config: ModelConfig, half: str, theirs: str, ours: str) -> Iterator[Piece]:
    for name, norm in _NORMS[config.facts.norms].items():
        if norm.startswith(half):
            yield _whole(f"{theirs}.{name}.weight", f"{ours}.{norm}.weight", config.hidden_size)


def _attention(config: ModelConfig, theirs: str, ours: str) -> Iterator[Piece]:
    rows = {"q_proj": config.q_size, "k_proj": config.kv_size, "v_proj": config.kv_size}
    if config.facts.has_fused_files:
        rows = {"qkv_proj": sum(rows.values())}
    yield from _stacked(f"{theirs}.{{}}.weight", rows, f"{ours}.qkv.weight", config.hidden_size)
    if config.has_qkv_bias:
        yield from _stacked(f"{theirs}.{{}}.bias", rows, f"{ours}.qkv.bias")
    if config.facts.qk_norm:
        yield _whole(f"{theirs}.q_norm.weight", f"{ours}.q_norm.weight", config.q_norm_size)
        yield _whole(f"{theirs}.k_norm.weight", f"{ours}.k_norm.weight", config.k_norm_size)
    yield _whole(f"{theirs}.o_proj.weight", f"{ours}.out.weight", config.hidden_size, config.q_size)
    if config.has_output_bias:
        yield _whole(f"{theirs}.o_proj.bias", f"{ours}.out.bias", config.hidden_size)


def _mlp(config: ModelConfig, theirs: str, ours: str) -> Iterator[Piece]:
    width, inner = config.hidden_size, config.intermediate_size
    rows = (
        {"gate_up_proj": 2 * inner}
        if config.facts.has_fused_files
        else {"gate_proj": inner, "up_proj": inner}
    )
    yield from _stacked(f"{theirs}.{{}}.weight", rows, f"{ours}.gate_up.weight", width)
    yield _whole(f"{theirs}.down_proj.weight", f"{ours}.down.weight", width, inner)


def _experts(config: ModelConfig, experts: Experts, theirs: str, ours: str) -> Iterator[Piece]:
    width, inner = config.hidden_size, experts.intermediate_size
    gate_up, down = {"gate_proj": inner, "up_proj": inner}, {"down_proj": width}
    yield _whole(f"{theirs}.gate.weight", f"{ours}.router.weight", experts.num_experts, width)
    for expert in range(experts.num_experts):
        name = f"{theirs}.experts.{expert}.{{}}.weight"
        yield from _stacked(name, gate_up, f"{ours}.gate_up", width, expert=expert)
        yield from _stacked(name, down, f"{ours}.down", inner, expert=expert)


def _whole(name: str, parameter: str, *shape: int) -> Piece:
    return Piece(name=name, parameter=parameter, shape=shape)


def _stacked(
    name: str, rows: dict[str, int], parameter: str, *row_shape: int, expert: int | None = None
) -> Iterator[Piece]:
    """The tensors whose rows follow one another in the parameter; `name` has a blank for each one's own."""
    first_row = 0
    for own_name, num_rows in rows.items():
        yield Piece(
            name=name.format(own_name),
            parameter=parameter,
            shape=(num_rows, *row_shape),
            first_row=first_row,
            expert=expert,
        )
        first_row += num_rows
