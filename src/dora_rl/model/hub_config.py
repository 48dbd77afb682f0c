"""`config.json`: a Hugging Face configuration becomes a ModelConfig, and a ModelConfig one that opens again.

Plain data only: nothing named in the file is ever imported or run. Reads the spellings of transformers 4
and 5 and writes both, because serving engines of either age open the result. What the decoder does not
compute is refused here, in a sentence, rather than computed wrongly later.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

import msgspec

from dora_rl.core.errors import ModelError, NotNative
from dora_rl.model.config import Dtype, Experts, ModelConfig
from dora_rl.model.families import FAMILIES, Family, FamilyFacts
from dora_rl.model.hub_rope import (
    longest,
    published_length,
    published_rope,
    read_rope,
    rotary_part,
    write_rope,
)
from dora_rl.model.hub_variants import ACTIVATIONS, read_variant, write_variant
from dora_rl.model.published import PublishedConfig

_MOST = 2**31
"""Sizes from here on are no sizes but damage."""
_NO_MAPPING = "a model configuration is a mapping"
_COPY_AGAIN = "copy config.json again from the model it belongs to"
DTYPES: tuple[Dtype, ...] = get_args(Dtype)


def read_config(path: Path) -> ModelConfig:
    """The model a `config.json` describes."""
    try:
        return from_published(read_published(path))
    except NotNative as error:
        raise NotNative(f"{path}: {error.message}", hint=error.hint) from error
    except ModelError as error:
        told = error.message if str(path) in error.message else f"{path}: {error.message}"
        raise ModelError(told, hint=error.hint or _COPY_AGAIN) from error


def read_published(path: Path) -> dict[str, Any]:
    """The contents of a `config.json`, whatever model it describes."""
    try:
        published = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        hint = "a model directory has a config.json, safetensors files and a tokenizer"
        raise ModelError(f"cannot read {path}: {error.strerror}", hint=hint) from error
    except ValueError as error:
        raise ModelError(f"{path} is not valid JSON: {error}", hint=_COPY_AGAIN) from error
    if not isinstance(published, dict):
        raise ModelError(f"{path}: {_NO_MAPPING}", hint=_COPY_AGAIN)
    return published


def why_not_native(path: Path) -> str | None:
    """Why the native decoder does not compute the model of a `config.json`, in words; None where it does.

    The one place where a model is native or not: whoever chooses engine and trainer asks here. A file that
    cannot be read, or is at odds with itself, is a ModelError all the same.
    """
    try:
        from_published(read_published(path))
    except NotNative as error:
        return error.message
    return None


def from_published(published: object) -> ModelConfig:
    """The model that the contents of a `config.json` describe."""
    if not isinstance(published, dict):
        raise ModelError(_NO_MAPPING)
    family = _family(published)
    try:
        given = msgspec.convert(FAMILIES[family].defaults | published, PublishedConfig)
    except msgspec.ValidationError as error:
        raise ModelError(f"the configuration cannot be read: {error}", hint=_COPY_AGAIN) from error
    _refuse_unsupported(given, FAMILIES[family])
    _check_sizes(given)
    rope = read_rope(published_rope(given))
    return ModelConfig(
        family=family,
        vocab_size=given.vocab_size,
        hidden_size=given.hidden_size,
        intermediate_size=given.intermediate_size,
        num_layers=given.num_hidden_layers,
        num_heads=given.num_attention_heads,
        num_kv_heads=given.num_key_value_heads or given.num_attention_heads,
        head_dim=given.head_dim or given.hidden_size // given.num_attention_heads,
        max_positions=longest(rope, given.max_position_embeddings),
        norm_eps=given.rms_norm_eps,
        rope=rope,
        is_tied=given.tie_word_embeddings,
        has_qkv_bias=family == "qwen2" or given.attention_bias,
        has_output_bias=family != "qwen2" and given.attention_bias,
        **read_variant(family, given),
        experts=_experts(given) if family == "qwen3_moe" else None,
        dtype=to_dtype(given.dtype or given.torch_dtype or "float32"),
        initializer_range=given.initializer_range,
        bos_token_id=given.bos_token_id,
        eos_token_ids=as_ids(given.eos_token_id),
        pad_token_id=given.pad_token_id,
    )


def to_published(config: ModelConfig) -> dict[str, Any]:
    """The contents of a `config.json` that transformers, and `from_published`, read as this model."""
    eos = config.eos_token_ids
    return {
        "architectures": [config.facts.architecture],
        "model_type": config.family,
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "max_position_embeddings": published_length(config.rope, config.max_positions),
        "rms_norm_eps": config.norm_eps,
        "tie_word_embeddings": config.is_tied,
        "attention_bias": config.has_output_bias,
        "initializer_range": config.initializer_range,
        "use_cache": True,
        "dtype": config.dtype,
        "torch_dtype": config.dtype,
        "bos_token_id": config.bos_token_id,
        "eos_token_id": eos[0] if len(eos) == 1 else list(eos) or None,
        "pad_token_id": config.pad_token_id,
        **write_rope(config.rope),
        **write_variant(config),
        **(_published_experts(config.experts) if config.experts else {}),
    }


def _family(published: dict[str, Any]) -> Family:
    name = published.get("model_type")
    for family in FAMILIES:
        if name == family:
            return family
    raise NotNative(f"model type {name!r} is not supported", hint=f"supported: {', '.join(FAMILIES)}")


def _refuse_unsupported(given: PublishedConfig, facts: FamilyFacts) -> None:
    slides = given.use_sliding_window or "sliding_attention" in (given.layer_types or ())
    activation = given.hidden_activation or given.hidden_act
    refused = {
        "sliding-window attention": slides and facts.windows != "by layer",
        "attention that looks ahead": given.use_bidirectional_attention,
        "soft caps on scores or logits": given.attn_logit_softcapping or given.final_logit_softcapping,
        "biases in the MLP": given.mlp_bias,
        "quantized weights": given.quantization_config is not None,
        "rotary positions on a part of each head": not facts.may_rotate_part and rotary_part(given) != 1.0,
        f"the activation {activation!r}": activation not in ACTIVATIONS[facts.activation],
    }
    for feature, is_asked in refused.items():
        if is_asked:
            raise NotNative(f"not supported: {feature}", hint="choose a model that does without")


_SIZES = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "max_position_embeddings",
    "num_experts",
    "num_experts_per_tok",
    "moe_intermediate_size",
)


def _check_sizes(given: PublishedConfig) -> None:
    for key in _SIZES:
        value = getattr(given, key)
        if value is not None and not 1 <= value < _MOST:
            raise ModelError(
                f"{key} cannot be {value}: a model needs at least one layer, head, hidden unit and token"
            )
    heads, kv_heads = given.num_attention_heads, given.num_key_value_heads or given.num_attention_heads
    if heads % kv_heads:
        raise ModelError(
            f"{heads} query heads cannot share {kv_heads} key-value heads: num_attention_heads, "
            "num_key_value_heads"
        )
    for token in as_ids(given.eos_token_id):
        if not 0 <= token < given.vocab_size:
            raise ModelError(
                f"eos_token_id = {token} is no token: vocab_size is {given.vocab_size}", hint=_COPY_AGAIN
            )


def _experts(given: PublishedConfig) -> Experts:
    num_experts = given.num_experts or given.num_local_experts
    if num_experts is None:
        raise ModelError("the configuration of a mixture of experts lacks num_experts")
    step = given.decoder_sparse_step
    if step < 1:
        raise ModelError(f"decoder_sparse_step cannot be {step}", hint="1 puts experts into every layer")
    stepped_over = (i for i in range(given.num_hidden_layers) if (i + 1) % step)
    return Experts(
        num_experts=num_experts,
        num_active=given.num_experts_per_tok,
        intermediate_size=given.moe_intermediate_size,
        is_normalised=given.norm_topk_prob,
        balance_coefficient=given.router_aux_loss_coef,
        dense_layers=tuple(sorted({*stepped_over, *(given.mlp_only_layers or ())})),
    )


def _published_experts(experts: Experts) -> dict[str, Any]:
    return {
        "num_experts": experts.num_experts,
        "num_experts_per_tok": experts.num_active,
        "moe_intermediate_size": experts.intermediate_size,
        "norm_topk_prob": experts.is_normalised,
        "router_aux_loss_coef": experts.balance_coefficient,
        "decoder_sparse_step": 1,
        "mlp_only_layers": list(experts.dense_layers),
    }


def to_dtype(name: str) -> Dtype:
    """The dtype of that name, if weights may have it."""
    for dtype in DTYPES:
        if name == dtype:
            return dtype
    raise ModelError(f"weights of type {name!r} are not supported", hint=f"supported: {', '.join(DTYPES)}")


def as_ids(ids: int | Sequence[int] | None) -> tuple[int, ...]:
    """Token ids, which are published as one, several or none."""
    if ids is None:
        return ()
    return (ids,) if isinstance(ids, int) else tuple(ids)
