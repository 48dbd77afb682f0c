"""The forward pass: tokens and their positions to hidden states, in one layout for engine and trainer.

Knows no sequences and no cache (see `attention`), and no files (see `load`). Matrices and activations are
in the serving dtype; norms, rotations, routing, the head and the softmax over the vocabulary are in
float32.
"""

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils.checkpoint import checkpoint

from dora_rl.model.attention import Attention
from dora_rl.model.config import ModelConfig
from dora_rl.model.experts import ExpertMlp, gated
from dora_rl.model.fused import compiled, with_open_length
from dora_rl.model.logprobs import TokenLogprobs, token_logprobs
from dora_rl.model.rope import Rotary, Rotation, rotate
from dora_rl.model.router_notes import RouterNotes


class Decoder(nn.Module):
    """A causal language model; its parameters are named and shaped as `parameter_layout` says."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.embed = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(Block(config, layer) for layer in range(config.num_layers))
        self.norm = RmsNorm(config, config.hidden_size)
        self.head = None if config.is_tied else nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        ropes = [config.rope_of(layer) for layer in range(config.num_layers)]
        kinds = list(dict.fromkeys(ropes))
        self._rotaries = [None if rope is None else Rotary(rope, config.rotated_size) for rope in kinds]
        self._rotary_of = [kinds.index(rope) for rope in ropes]
        """Which of the rotaries each layer has."""
        self.has_plain_head = True
        self.is_checkpointed = False
        """Whether layers are computed again in the backward pass instead of being remembered."""

    @classmethod
    def empty(
        cls, config: ModelConfig, *, device: torch.device | str = "cpu", dtype: torch.dtype | None = None
    ) -> Self:
        """A decoder whose parameters are not set, in the configuration's dtype unless told otherwise."""
        decoder = cls.outline(config).to(dtype or torch_dtype(config))

        def room(shaped: Tensor) -> Tensor:
            return torch.empty(shaped.shape, dtype=shaped.dtype, device=device)

        # As `to_empty` does, for which torch imports sympy.
        decoder._apply(room)  # type: ignore[no-untyped-call]
        return decoder

    @classmethod
    def outline(cls, config: ModelConfig) -> Self:
        """A decoder without memory, in float32: its modules, and the shapes of its parameters."""
        with torch.device("meta"), _Unset():
            return cls(config)

    def forward(
        self, tokens_T: Tensor, positions_T: Tensor, attention: Attention, routing: RouterNotes | None = None
    ) -> Tensor:
        """The hidden state of each token after the final norm and divisor, ready for the head."""
        hidden_TH = _scaled(self.embed(tokens_T), self.config.embedding_scale)
        rotations = [rotary and rotary.rotation(positions_T) for rotary in self._rotaries]
        for block, kind in zip(self.layers, self._rotary_of, strict=True):
            rotation = rotations[kind]
            if self.is_checkpointed and torch.is_grad_enabled():
                hidden_TH = checkpoint(block, hidden_TH, rotation, attention, routing, use_reentrant=False)
            else:
                hidden_TH = block(hidden_TH, rotation, attention, routing)
        return _scaled(self.norm(hidden_TH), 1 / self.config.logits_divisor)

    def fuse(self) -> None:
        """Run layers as Llama's and Qwen's are through the compiler: for training on a GPU."""
        for layer, block in enumerate(self.layers):
            assert isinstance(block, Block), f"a layer is a {type(block)}"
            is_rotated = self.config.rope_of(layer) is not None
            block.is_fused = isinstance(block.mlp, Mlp) and is_rotated and not self.config.unusual

    @property
    def device(self) -> torch.device:
        """The device of the weights."""
        return self.norm.weight.device

    @property
    def head_VH(self) -> Tensor:
        """The matrix of the head: the embedding where the two are tied."""
        return self.embed.weight if self.head is None else self.head.weight

    def logits(self, hidden_TH: Tensor) -> Tensor:
        """Logits over the vocabulary, float32."""
        return functional.linear(hidden_TH.float(), self.head_VH.float())

    def logprobs(self, hidden_TH: Tensor, targets_T: Tensor, temperature: float = 1.0) -> TokenLogprobs:
        """The logprob of each target at its hidden state, and the entropy of that distribution."""
        return token_logprobs(hidden_TH, self.head_VH, targets_T, temperature=temperature)


class _Unset(TorchFunctionMode):
    """Leaves parameters unset: torch imports its compiler, for seconds, to draw values without memory."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        # Methods of C have no module.
        is_draw = getattr(func, "__module__", None) == nn.init.__name__
        return None if is_draw else func(*args, **(kwargs or {}))


class Block(nn.Module):
    """One layer: attention, then an MLP or experts, each added to what came in."""

    def __init__(self, config: ModelConfig, layer: int) -> None:
        super().__init__()
        experts, norms = config.experts_of(layer), config.facts.norms
        self.attention_norm = RmsNorm(config, config.hidden_size) if norms != "after" else nn.Identity()
        self.attention = SelfAttention(config, layer)
        self.attention_change_norm = RmsNorm(config, config.hidden_size) if norms != "before" else None
        self.mlp_norm = RmsNorm(config, config.hidden_size) if norms != "after" else nn.Identity()
        self.mlp = ExpertMlp(config.hidden_size, experts, layer) if experts else Mlp(config)
        self.mlp_change_norm = RmsNorm(config, config.hidden_size) if norms != "before" else None
        self.residual_scale = config.residual_scale
        self.is_fused = False

    def forward(
        self,
        hidden_TH: Tensor,
        rotation: Rotation | None,
        attention: Attention,
        routing: RouterNotes | None = None,
    ) -> Tensor:
        """The residual stream after this layer."""
        if self.is_fused:
            assert rotation is not None, "layers without positions are not fused"
            return self._forward_fused(hidden_TH, rotation, attention)
        change_TH = self.attention(self.attention_norm(hidden_TH), rotation, attention)
        hidden_TH = self._added(hidden_TH, change_TH, self.attention_change_norm)
        normed_TH = self.mlp_norm(hidden_TH)
        change_TH = self.mlp(normed_TH) if routing is None else self.mlp(normed_TH, routing)
        return self._added(hidden_TH, change_TH, self.mlp_change_norm)

    def _added(self, hidden_TH: Tensor, change_TH: Tensor, norm: "RmsNorm | None") -> Tensor:
        if norm is not None:
            change_TH = norm(change_TH)
        if self.residual_scale == 1.0:
            return hidden_TH + change_TH
        return torch.add(hidden_TH, change_TH, alpha=self.residual_scale)

    def _forward_fused(self, hidden_TH: Tensor, rotation: Rotation, attention: Attention) -> Tensor:
        own, mlp, eps = self.attention, self.mlp, self.mlp_norm.eps
        assert isinstance(mlp, Mlp), "layers with experts are not fused"
        project, absorb = compiled()
        with_open_length(hidden_TH, *rotation)
        qkv, out = own.qkv, own.out
        heads = project(
            hidden_TH, rotation, self.attention_norm.weight, qkv.weight, qkv.bias, own.head_norms,
            own.sizes, own.head_dim, eps,
        )  # fmt: skip
        mixed_THD = attention(own.layer, *heads, own.window)
        with_open_length(mixed_THD)
        return absorb(
            hidden_TH, mixed_THD, out.weight, out.bias, self.mlp_norm.weight, mlp.gate_up.weight,
            mlp.down.weight, eps,
        )  # fmt: skip


class SelfAttention(nn.Module):
    """Projections, norms and rotation around an Attention."""

    def __init__(self, config: ModelConfig, layer: int) -> None:
        super().__init__()
        self.layer = layer
        self.head_dim = config.head_dim
        self.sizes = (config.q_size, config.kv_size, config.kv_size)
        self.window = config.window_of(layer)
        self.query_scale = config.query_scale
        self.norms_width, self.norms_heads = (config.facts.qk_norm == how for how in ("width", "head"))
        self.qkv = nn.Linear(config.hidden_size, sum(self.sizes), bias=config.has_qkv_bias)
        self.q_norm = RmsNorm(config, config.q_norm_size) if config.facts.qk_norm else nn.Identity()
        self.k_norm = RmsNorm(config, config.k_norm_size) if config.facts.qk_norm else nn.Identity()
        self.out = nn.Linear(config.q_size, config.hidden_size, bias=config.has_output_bias)

    @property
    def head_norms(self) -> tuple[Tensor, Tensor] | None:
        """The weights of the norms of queries and keys, where there are any."""
        if isinstance(self.q_norm, RmsNorm) and isinstance(self.k_norm, RmsNorm):
            return self.q_norm.weight, self.k_norm.weight
        return None

    def forward(self, normed_TH: Tensor, rotation: Rotation | None, attention: Attention) -> Tensor:
        """What the tokens read from those they may see."""
        q, k, v = self.qkv(normed_TH).split(self.sizes, -1)
        if self.norms_width:
            q, k = self.q_norm(q), self.k_norm(k)
        q_THD, k_TKD, v_TKD = (part.unflatten(-1, (-1, self.head_dim)) for part in (q, k, v))
        if self.norms_heads:
            q_THD, k_TKD = self.q_norm(q_THD), self.k_norm(k_TKD)
        if rotation is not None:
            q_THD, k_TKD = rotate(q_THD, rotation), rotate(k_TKD, rotation)
        if self.query_scale != 1.0:
            q_THD = _scaled(q_THD, self.query_scale)
        mixed_THD = attention(self.layer, q_THD, k_TKD, v_TKD, self.window)
        mixed: Tensor = self.out(mixed_THD.flatten(1))
        return mixed


class Mlp(nn.Module):
    """The gated MLP, gate and up in one matrix."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.activation = config.facts.activation
        self.gate_up = nn.Linear(config.hidden_size, 2 * config.intermediate_size, bias=False)
        self.down = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, normed_TH: Tensor, routing: RouterNotes | None = None) -> Tensor:
        """The change to the residual stream; nothing is routed."""
        change: Tensor = self.down(gated(self.gate_up(normed_TH), self.activation))
        return change


class RmsNorm(nn.Module):
    """Normalisation by the root mean square, in float32 and rounded once."""

    def __init__(self, config: ModelConfig, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = config.norm_eps
        self.is_offset = config.facts.has_offset_norms

    def forward(self, values: Tensor) -> Tensor:
        """Normalise values along the last axis, and weight them."""
        if self.is_offset:
            weight = 1.0 + self.weight.float()
            return functional.rms_norm(values.float(), weight.shape, weight, self.eps).to(values.dtype)
        return functional.rms_norm(values, self.weight.shape, self.weight, self.eps)


def _scaled(values: Tensor, factor: float) -> Tensor:
    return values if factor == 1.0 else values * _rounded(factor, values.dtype)


@cache
def _rounded(factor: float, dtype: torch.dtype) -> float:
    """The factor in the dtype of what it scales: a model was trained on its rounding."""
    return torch.tensor(factor, dtype=dtype).item()


def torch_dtype(config: ModelConfig) -> torch.dtype:
    """The torch dtype that the configuration names."""
    dtype: torch.dtype = getattr(torch, config.dtype)
    return dtype
