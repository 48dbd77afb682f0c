"""The families of models that the decoder computes, a row each: what follows from the name alone.

Everything else about a model is a number in its configuration (see `config`). A family is native if it has a
row here.
"""

from typing import Any, Literal

from msgspec import Struct

Family = Literal[
    "llama",
    "mistral",
    "qwen2",
    "qwen3",
    "qwen3_moe",
    "smollm3",
    "granite",
    "olmo2",
    "phi3",
    "gemma3_text",
]

NormPlace = Literal["before", "after", "around"]
Activation = Literal["silu", "gelu_tanh"]


class FamilyFacts(Struct, frozen=True, kw_only=True):
    """What all models of a family have in common."""

    architecture: str
    """Name of its class in transformers."""
    norms: NormPlace = "before"
    """Whether a half of a layer normalises what it reads, what it adds to the residual stream, or both."""
    qk_norm: Literal["head", "width"] | None = None
    """Whether queries and keys are normalised before they are rotated: head by head, or all together."""
    has_offset_norms: bool = False
    """Whether norms weight by one more than their parameter."""
    activation: Activation = "silu"
    windows: Literal["none", "everywhere", "by layer"] = "none"
    """Which layers `sliding_window` applies to: by layer, those that `layer_types` names."""
    may_rotate_part: bool = False
    """Whether `partial_rotary_factor` has a say."""
    has_fused_files: bool = False
    """Whether files hold queries, keys and values, and gate and up, as one matrix each."""
    defaults: dict[str, Any] = {}
    """What transformers takes for keys that a `config.json` leaves out, where it is not what Llama has."""


FAMILIES: dict[Family, FamilyFacts] = {
    "llama": FamilyFacts(architecture="LlamaForCausalLM"),
    "mistral": FamilyFacts(
        architecture="MistralForCausalLM",
        windows="everywhere",
        defaults={"num_key_value_heads": 8, "sliding_window": 4096},
    ),
    "qwen2": FamilyFacts(architecture="Qwen2ForCausalLM", defaults={"num_key_value_heads": 32}),
    "qwen3": FamilyFacts(
        architecture="Qwen3ForCausalLM",
        qk_norm="head",
        defaults={"num_key_value_heads": 32, "head_dim": 128},
    ),
    "qwen3_moe": FamilyFacts(
        architecture="Qwen3MoeForCausalLM", qk_norm="head", defaults={"num_key_value_heads": 4}
    ),
    "smollm3": FamilyFacts(
        architecture="SmolLM3ForCausalLM",
        defaults={
            "num_key_value_heads": 4,
            "tie_word_embeddings": True,
            "rope_theta": 2_000_000.0,
            "no_rope_layer_interval": 4,
        },
    ),
    "granite": FamilyFacts(architecture="GraniteForCausalLM", defaults={"attention_multiplier": 1.0}),
    "olmo2": FamilyFacts(
        architecture="Olmo2ForCausalLM", norms="after", qk_norm="width", defaults={"rms_norm_eps": 1e-5}
    ),
    "phi3": FamilyFacts(
        architecture="Phi3ForCausalLM",
        windows="everywhere",
        may_rotate_part=True,
        has_fused_files=True,
        defaults={"rms_norm_eps": 1e-5, "original_max_position_embeddings": 4096},
    ),
    "gemma3_text": FamilyFacts(
        architecture="Gemma3ForCausalLM",
        norms="around",
        qk_norm="head",
        has_offset_norms=True,
        activation="gelu_tanh",
        windows="by layer",
        defaults={
            "hidden_act": "gelu_pytorch_tanh",
            "num_key_value_heads": 4,
            "head_dim": 256,
            "tie_word_embeddings": True,
            "query_pre_attn_scalar": 256,
            "sliding_window": 4096,
            "sliding_window_pattern": 6,
            "rope_theta": 1_000_000.0,
            "rope_local_base_freq": 10_000.0,
        },
    ),
}
