"""What a model is: sizes and variants, as frozen records that check themselves.

Knows neither torch nor files. Every number the forward pass needs is here under one name, whatever a
published configuration calls it; what follows from the family is a property, not a field.
"""

from typing import Literal

from msgspec import Struct

from dora_rl.core.errors import ModelError
from dora_rl.model.families import FAMILIES, Family, FamilyFacts

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


class LongRope(Struct, frozen=True, kw_only=True):
    """Rotary positions of LongRoPE, of sequences up to the original length: each wavelength has a factor.

    Longer sequences have other factors for all their positions, so that cached keys would go stale.
    """

    theta: float
    attention_factor: float
    short_factor: tuple[float, ...]
    long_factor: tuple[float, ...]
    """Kept to be written again; not used."""
    original_max_positions: int
    published_max_positions: int
    """Length that the long factors reach."""


Rope = DefaultRope | LinearRope | Llama3Rope | YarnRope | LongRope


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
    balance_coefficient: float = 0.001
    """Coefficient of the load-balance loss that the model was published with."""

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
    rotary_size: int | None = None
    """Leading dimensions of each head that are rotated; None for all."""
    unrotated_layers: tuple[int, ...] = ()
    """Layers that do not know positions."""
    window: int | None = None
    """Last tokens, its own among them, that a token of a sliding layer sees."""
    sliding_layers: tuple[int, ...] = ()
    """Layers in which a token sees no more than the window."""
    sliding_rope: Rope | None = None
    """Rotary positions of the sliding layers where they are not those of the others."""
    attention_scale: float | None = None
    """Factor on the scores of attention; None for `head_dim ** -0.5`."""
    embedding_scale: float = 1.0
    residual_scale: float = 1.0
    """Factor on what each half of a layer adds to the residual stream."""
    logits_divisor: float = 1.0
    initializer_range: float = 0.02
    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = ()
    pad_token_id: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.head_dim % 2:
            raise ModelError(f"rotary positions need an even head size, not {self.head_dim}")
        if self.rotary_size is not None and (
            self.rotary_size % 2 or not 0 < self.rotary_size <= self.head_dim
        ):
            raise ModelError(f"{self.rotary_size} of {self.head_dim} dimensions of a head cannot be rotated")
        factors = self.rope.short_factor if isinstance(self.rope, LongRope) else None
        if factors is not None and len(factors) != self.rotated_size // 2:
            raise ModelError(f"{len(factors)} factors of rotary positions for {self.rotated_size} dimensions")
        if self.sliding_layers and (self.window or 0) < 1:
            raise ModelError(f"a sliding window cannot be {self.window}")

    @property
    def rotated_size(self) -> int:
        """Leading dimensions of each head that are rotated."""
        return self.rotary_size or self.head_dim

    @property
    def facts(self) -> FamilyFacts:
        """What all models of the family have in common."""
        return FAMILIES[self.family]

    @property
    def query_scale(self) -> float:
        """Factor on queries before attention, which scales scores by `head_dim ** -0.5` itself."""
        return 1.0 if self.attention_scale is None else self.attention_scale * self.head_dim**0.5

    @property
    def q_norm_size(self) -> int:
        """Width over which queries are normalised."""
        return self.q_size if self.facts.qk_norm == "width" else self.head_dim

    @property
    def k_norm_size(self) -> int:
        """Width over which keys are normalised."""
        return self.kv_size if self.facts.qk_norm == "width" else self.head_dim

    @property
    def unusual(self) -> tuple[str, ...]:
        """What layers do, in words, that kernels made for those of Llama and Qwen do not compute."""
        facts = self.facts
        scales = {self.query_scale, self.embedding_scale, self.residual_scale, self.logits_divisor}
        found = {
            "norms behind attention and MLP": facts.norms != "before",
            "queries and keys normalised over all heads": facts.qk_norm == "width",
            "norms that add one to their weight": facts.has_offset_norms,
            f"the activation {facts.activation}": facts.activation != "silu",
            "rotary positions on a part of each head": self.rotated_size != self.head_dim,
            "multipliers": scales != {1.0},
        }
        return tuple(words for words, is_so in found.items() if is_so)

    def window_of(self, layer: int) -> int | None:
        """How many tokens back, itself included, a token of the layer sees; None for all."""
        return self.window if layer in self.sliding_layers else None

    def rope_of(self, layer: int) -> Rope | None:
        """The rotary positions of a layer; None where it has none."""
        if layer in self.unrotated_layers:
            return None
        return self.sliding_rope if self.sliding_rope and layer in self.sliding_layers else self.rope
