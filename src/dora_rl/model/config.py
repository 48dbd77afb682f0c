"""What a model is: sizes and variants, as frozen records that check themselves.

Knows neither torch nor files. Every number the forward pass needs is here under one name, whatever a
published configuration calls it; what follows from the family is a property, not a field.
"""

from typing import Literal

from msgspec import Struct

from dora_rl.core.errors import ModelError

Family = Literal["llama", "qwen2", "qwen3", "qwen3_moe"]
Dtype = Literal["float32", "bfloat16", "float16"]


class DefaultRope(Struct, frozen=True, kw_only=True):
    """Rotary positions as first published, without scaling."""

    theta: float


class LinearRope(Struct, frozen=True, kw_only=True):
    """Rotary positions divided by `factor`."""

    theta: float
    factor: float


class Llama3Rope(Struct, frozen=True, kw_only=True):
    """Rotary positions of Llama 3: long wavelengths divided by `factor`, short ones kept, blended between."""

    theta: float
    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_positions: int


class YarnRope(Struct, frozen=True, kw_only=True):
    """Rotary positions of YaRN: slow dimensions divided by `factor`, fast ones kept, attention sharpened."""

    theta: float
    factor: float
    attention_factor: float
    beta_fast: float
    beta_slow: float
    is_truncated: bool
    """Whether the blend begins and ends at whole dimensions."""
    original_max_positions: int


Rope = DefaultRope | LinearRope | Llama3Rope | YarnRope


class Experts(Struct, frozen=True, kw_only=True):
    """The mixture of experts in place of an MLP."""

    num_experts: int
    num_active: int
    """Number of experts a token is sent to."""
    intermediate_size: int
    is_normalised: bool
    """Whether the weights of the active experts are scaled to sum to one."""
    dense_layers: tuple[int, ...] = ()
    """Layers that have an ordinary MLP instead."""

    def __post_init__(self) -> None:
        if not 1 <= self.num_active <= self.num_experts:
            raise ModelError(f"{self.num_active} of {self.num_experts} experts cannot be active")


class ModelSizes(Struct, frozen=True, kw_only=True):
    """What a model costs and takes, whoever computes it: all that sizing an engine or a trainer needs."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_positions: int
    is_tied: bool
    """Whether the head is the embedding."""
    experts: Experts | None = None
    dtype: Dtype = "float32"
    """Dtype of the stored weights: the serving dtype unless a loader is told otherwise."""

    def __post_init__(self) -> None:
        if min(self.num_layers, self.num_heads, self.num_kv_heads, self.hidden_size, self.vocab_size) < 1:
            raise ModelError("a model needs at least one layer, head, hidden unit and token")
        if self.num_heads % self.num_kv_heads:
            raise ModelError(f"{self.num_heads} query heads cannot share {self.num_kv_heads} key-value heads")

    @property
    def q_size(self) -> int:
        """Width of all query heads together."""
        return self.num_heads * self.head_dim

    @property
    def kv_size(self) -> int:
        """Width of all key heads together; values have the same."""
        return self.num_kv_heads * self.head_dim

    def experts_of(self, layer: int) -> Experts | None:
        """The experts of a layer, or None where it has an ordinary MLP."""
        return self.experts if self.experts and layer not in self.experts.dense_layers else None


class ModelConfig(ModelSizes, frozen=True, kw_only=True):
    """Everything that decides the shape of the parameters and the arithmetic of the native forward pass."""

    family: Family
    norm_eps: float
    rope: Rope
    has_qkv_bias: bool = False
    has_output_bias: bool = False
    initializer_range: float = 0.02
    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = ()
    pad_token_id: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.head_dim % 2:
            raise ModelError(f"rotary positions need an even head size, not {self.head_dim}")

    @property
    def has_qk_norm(self) -> bool:
        """Whether queries and keys are normalised head by head before they are rotated."""
        return self.family in ("qwen3", "qwen3_moe")
