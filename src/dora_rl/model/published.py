"""The keys of a published `config.json` that matter to the decoder, under the names they have there.

Defaults are those that transformers gives Llama. A key not listed has no say in what the decoder computes.
"""

from typing import Any

from msgspec import Struct


class PublishedConfig(Struct, frozen=True, kw_only=True):
    """The `config.json` of a published model, its types checked."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    max_position_embeddings: int
    num_key_value_heads: int | None = None
    head_dim: int | None = None
    rms_norm_eps: float = 1e-6
    initializer_range: float = 0.02
    tie_word_embeddings: bool = False
    attention_bias: bool = False
    rope_theta: float | None = None
    rope_parameters: dict[str, Any] | None = None
    rope_scaling: dict[str, Any] | None = None
    original_max_position_embeddings: int | None = None
    dtype: str | None = None
    torch_dtype: str | None = None
    bos_token_id: int | None = None
    eos_token_id: int | tuple[int, ...] | None = None
    pad_token_id: int | None = None
    num_experts: int | None = None
    num_local_experts: int | None = None
    num_experts_per_tok: int = 8
    moe_intermediate_size: int = 768
    norm_topk_prob: bool = False
    router_aux_loss_coef: float = 0.001
    decoder_sparse_step: int = 1
    mlp_only_layers: tuple[int, ...] | None = None
    hidden_act: str = "silu"
    hidden_activation: str | None = None
    partial_rotary_factor: float | None = None
    no_rope_layers: tuple[int, ...] | None = None
    no_rope_layer_interval: int | None = None
    sliding_window: int | None = None
    sliding_window_pattern: int | None = None
    layer_types: tuple[str, ...] | None = None
    rope_local_base_freq: float | None = None
    attention_multiplier: float | None = None
    embedding_multiplier: float = 1.0
    residual_multiplier: float = 1.0
    logits_scaling: float = 1.0
    query_pre_attn_scalar: float | None = None
    # Read only to be refused.
    attn_logit_softcapping: float | None = None
    final_logit_softcapping: float | None = None
    use_bidirectional_attention: bool | None = None
    mlp_bias: bool = False
    use_sliding_window: bool = False
    quantization_config: Any = None
