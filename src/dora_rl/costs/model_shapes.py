"""Shapes of known models: what decides their weights, their KV and their arithmetic."""

from functools import cache
from pathlib import Path

import msgspec
from msgspec import Struct

from dora_rl.core.errors import ConfigError
from dora_rl.core.record import Record

_BYTES = 2
"""Bytes of a value: weights and KV are served in bf16."""


class ModelShape(Record, frozen=True):
    """The sizes of a decoder-only transformer that decide its costs."""

    name: str
    layers: int
    width: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    """Width of the feed-forward part, or of one expert where there are several."""
    vocabulary: int
    tied: bool = False
    experts: int = 1
    experts_per_token: int = 1

    @property
    def expert_parameters(self) -> float:
        """Parameters of one expert, over all layers."""
        return 3.0 * self.layers * self.width * self.ffn

    @property
    def dense_parameters(self) -> float:
        """Number of parameters that every token passes through."""
        attention = self.width * self.head_dim * (2 * self.heads + 2 * self.kv_heads)
        router = self.width * self.experts if self.experts > 1 else 0
        embeddings = self.vocabulary * self.width * (1 if self.tied else 2)
        return self.layers * (attention + router) + embeddings

    @property
    def parameters(self) -> float:
        return self.dense_parameters + self.experts * self.expert_parameters

    @property
    def active_parameters(self) -> float:
        return self.dense_parameters + self.experts_per_token * self.expert_parameters

    @property
    def weight_bytes(self) -> float:
        return _BYTES * self.parameters

    @property
    def kv_bytes(self) -> int:
        """Bytes of KV of one token."""
        return 2 * self.layers * self.kv_heads * self.head_dim * _BYTES

    def weight_bytes_read(self, batch: float, imbalance: float) -> float:
        """Bytes of weights that a decode step of `batch` requests reads; of experts, only those chosen."""
        if self.experts == 1:
            return self.weight_bytes
        chosen: float = 1.0 - (1.0 - self.experts_per_token / self.experts) ** batch
        touched = min(1.0, chosen * imbalance)
        return _BYTES * (self.dense_parameters + touched * self.experts * self.expert_parameters)


def _dense(name: str, layers: int, width: int, heads: int, kv_heads: int, ffn: int, vocabulary: int,
           *, head_dim: int = 128, tied: bool = False) -> ModelShape:  # fmt: skip
    return ModelShape(name=name, layers=layers, width=width, heads=heads, kv_heads=kv_heads,
                      head_dim=head_dim, ffn=ffn, vocabulary=vocabulary, tied=tied)  # fmt: skip


SHAPES = {
    shape.name: shape
    for shape in (
        _dense("SmolLM2-135M", 30, 576, 9, 3, 1536, 49152, head_dim=64, tied=True),
        _dense("Qwen2.5-0.5B", 24, 896, 14, 2, 4864, 151936, head_dim=64, tied=True),
        _dense("Qwen2.5-1.5B", 28, 1536, 12, 2, 8960, 151936, tied=True),
        _dense("Qwen2.5-3B", 36, 2048, 16, 2, 11008, 151936, tied=True),
        _dense("Qwen2.5-7B", 28, 3584, 28, 4, 18944, 152064),
        _dense("Qwen2.5-14B", 48, 5120, 40, 8, 13824, 152064),
        _dense("Qwen2.5-32B", 64, 5120, 40, 8, 27648, 152064),
        _dense("Qwen2.5-72B", 80, 8192, 64, 8, 29568, 152064),
        _dense("Qwen3-0.6B", 28, 1024, 16, 8, 3072, 151936, tied=True),
        _dense("Qwen3-1.7B", 28, 2048, 16, 8, 6144, 151936, tied=True),
        _dense("Qwen3-4B", 36, 2560, 32, 8, 9728, 151936, tied=True),
        _dense("Qwen3-8B", 36, 4096, 32, 8, 12288, 151936),
        _dense("Qwen3-14B", 40, 5120, 40, 8, 17408, 151936),
        _dense("Qwen3-32B", 64, 5120, 64, 8, 25600, 151936),
        _dense("Llama-3.1-8B", 32, 4096, 32, 8, 14336, 128256),
        _dense("Llama-3.1-70B", 80, 8192, 64, 8, 28672, 128256),
        ModelShape(name="Qwen3-30B-A3B", layers=48, width=2048, heads=32, kv_heads=4, head_dim=128,
                   ffn=768, vocabulary=151936, experts=128, experts_per_token=8),
        ModelShape(name="Qwen3-235B-A22B", layers=94, width=4096, heads=64, kv_heads=4, head_dim=128,
                   ffn=1536, vocabulary=151936, experts=128, experts_per_token=8),
    )
}  # fmt: skip


_BUILT_IN = {
    "tiny": _dense("tiny", 2, 64, 4, 2, 192, 103, head_dim=16, tied=True),
    "smollm2": SHAPES["SmolLM2-135M"],
}
"""Shapes of the models that are built in, by the names that recipes have for them."""


def find_shape(name: str) -> ModelShape:
    """The shape of a model: a known one by name, or that of a directory in Hugging Face format."""
    if name in _BUILT_IN:
        return _BUILT_IN[name]
    if (Path(name) / "config.json").is_file():
        return _shape_in(Path(name) / "config.json")
    for known, shape in SHAPES.items():
        if known.lower() == name.lower():
            return shape
    raise ConfigError(
        f"no model named '{name}'",
        hint=f"give a directory with a config.json, or one of: {', '.join((*_BUILT_IN, *SHAPES))}",
    )


class _Sizes(Struct, frozen=True, kw_only=True):
    """Keys of a published `config.json` that decide what a model costs."""

    num_hidden_layers: int
    hidden_size: int
    num_attention_heads: int
    intermediate_size: int
    vocab_size: int
    num_key_value_heads: int | None = None
    head_dim: int | None = None
    tie_word_embeddings: bool = False
    num_experts: int | None = None
    num_experts_per_tok: int = 1
    moe_intermediate_size: int | None = None


@cache
def _shape_in(path: Path) -> ModelShape:
    try:
        sizes = msgspec.json.decode(path.read_bytes(), type=_Sizes)
    except (OSError, msgspec.DecodeError) as error:
        raise ConfigError(
            f"{path} does not say what a model costs: {error}",
            hint="copy config.json again from the model it belongs to",
        ) from error
    is_mixture = sizes.num_experts is not None
    return ModelShape(
        name=path.parent.name,
        layers=sizes.num_hidden_layers,
        width=sizes.hidden_size,
        heads=sizes.num_attention_heads,
        kv_heads=sizes.num_key_value_heads or sizes.num_attention_heads,
        head_dim=sizes.head_dim or sizes.hidden_size // max(1, sizes.num_attention_heads),
        ffn=(sizes.moe_intermediate_size if is_mixture else None) or sizes.intermediate_size,
        vocabulary=sizes.vocab_size,
        tied=sizes.tie_word_embeddings,
        experts=sizes.num_experts or 1,
        experts_per_token=sizes.num_experts_per_tok if is_mixture else 1,
    )
