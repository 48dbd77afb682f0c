"""The forward pass: tokens and their positions to hidden states, in one layout for engine and trainer.

Knows no sequences and no cache (see `attention`), and no files (see `load`). Matrices and activations are
in the serving dtype; norms, rotations, routing, the head and the softmax over the vocabulary are in
float32.
"""

from typing import Self

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from dora_rl.model.attention import Attention
from dora_rl.model.config import ModelConfig
from dora_rl.model.experts import ExpertMlp, gated
from dora_rl.model.fused import compiled, with_open_length
from dora_rl.model.logprobs import TokenLogprobs, token_logprobs
from dora_rl.model.rope import Rotary, Rotation, rotate


class Decoder(nn.Module):
    """A causal language model; its parameters are named and shaped as `parameter_layout` says."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.embed = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(Block(config, layer) for layer in range(config.num_layers))
        self.norm = RmsNorm(config.hidden_size, config.norm_eps)
        self.head = None if config.is_tied else nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self._rotary = Rotary(config.rope, config.head_dim)
        self.is_checkpointed = False
        """Whether layers are computed again in the backward pass instead of being remembered."""

    @classmethod
    def empty(
        cls, config: ModelConfig, *, device: torch.device | str = "cpu", dtype: torch.dtype | None = None
    ) -> Self:
        """A decoder whose parameters are not set, in the configuration's dtype unless told otherwise."""
        with torch.device("meta"):
            decoder = cls(config)
        return decoder.to(dtype or torch_dtype(config)).to_empty(device=device)

    def forward(self, tokens_T: Tensor, positions_T: Tensor, attention: Attention) -> Tensor:
        """The hidden state of each token after the final norm, ready for the head."""
        hidden_TH = self.embed(tokens_T)
        rotation = self._rotary.rotation(positions_T)
        for block in self.layers:
            if self.is_checkpointed and torch.is_grad_enabled():
                hidden_TH = checkpoint(block, hidden_TH, rotation, attention, use_reentrant=False)
            else:
                hidden_TH = block(hidden_TH, rotation, attention)
        normed_TH: Tensor = self.norm(hidden_TH)
        return normed_TH

    def fuse(self) -> None:
        """Run the layers without experts through the compiler: for training on a GPU."""
        for block in self.layers:
            assert isinstance(block, Block), f"a layer is a {type(block)}"
            block.is_fused = isinstance(block.mlp, Mlp)

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


class Block(nn.Module):
    """One layer: attention, then an MLP or experts, each added to what came in."""

    def __init__(self, config: ModelConfig, layer: int) -> None:
        super().__init__()
        experts = config.experts_of(layer)
        self.attention_norm = RmsNorm(config.hidden_size, config.norm_eps)
        self.attention = SelfAttention(config, layer)
        self.mlp_norm = RmsNorm(config.hidden_size, config.norm_eps)
        self.mlp = ExpertMlp(config.hidden_size, experts) if experts else Mlp(config)
        self.is_fused = False

    def forward(self, hidden_TH: Tensor, rotation: Rotation, attention: Attention) -> Tensor:
        """The residual stream after this layer."""
        if self.is_fused:
            return self._forward_fused(hidden_TH, rotation, attention)
        hidden_TH = hidden_TH + self.attention(self.attention_norm(hidden_TH), rotation, attention)
        change_TH: Tensor = self.mlp(self.mlp_norm(hidden_TH))
        return hidden_TH + change_TH

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
        mixed_THD = attention(own.layer, *heads)
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
        self.qkv = nn.Linear(config.hidden_size, sum(self.sizes), bias=config.has_qkv_bias)
        self.q_norm = RmsNorm(config.head_dim, config.norm_eps) if config.has_qk_norm else nn.Identity()
        self.k_norm = RmsNorm(config.head_dim, config.norm_eps) if config.has_qk_norm else nn.Identity()
        self.out = nn.Linear(config.q_size, config.hidden_size, bias=config.has_output_bias)

    @property
    def head_norms(self) -> tuple[Tensor, Tensor] | None:
        """The weights of the norms of queries and keys, where there are any."""
        if isinstance(self.q_norm, RmsNorm) and isinstance(self.k_norm, RmsNorm):
            return self.q_norm.weight, self.k_norm.weight
        return None

    def forward(self, normed_TH: Tensor, rotation: Rotation, attention: Attention) -> Tensor:
        """What the tokens read from those they may see."""
        heads = (
            part.unflatten(-1, (-1, self.head_dim)) for part in self.qkv(normed_TH).split(self.sizes, -1)
        )
        q_THD, k_TKD, v_TKD = heads
        q_THD = rotate(self.q_norm(q_THD), rotation)
        k_TKD = rotate(self.k_norm(k_TKD), rotation)
        mixed: Tensor = self.out(attention(self.layer, q_THD, k_TKD, v_TKD).flatten(1))
        return mixed


class Mlp(nn.Module):
    """The gated MLP, gate and up in one matrix."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.gate_up = nn.Linear(config.hidden_size, 2 * config.intermediate_size, bias=False)
        self.down = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, normed_TH: Tensor) -> Tensor:
        """The change to the residual stream."""
        change: Tensor = self.down(gated(self.gate_up(normed_TH)))
        return change


class RmsNorm(nn.Module):
    """Normalisation by the root mean square, in float32 and rounded once."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, values: Tensor) -> Tensor:
        """Normalise values along the last axis, and weight them."""
        return functional.rms_norm(values, self.weight.shape, self.weight, self.eps)


def torch_dtype(config: ModelConfig) -> torch.dtype:
    """The torch dtype that the configuration names."""
    dtype: torch.dtype = getattr(torch, config.dtype)
    return dtype
