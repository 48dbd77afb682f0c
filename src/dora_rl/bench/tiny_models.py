"""Tiny random models of many types, in Hugging Face format, each with what is odd about it."""

from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import AutoModelForCausalLM, PretrainedConfig
from transformers.utils import logging

VOCAB_SIZE = 103
EOS = 2
_SIZES: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "bos_token_id": None,
    "eos_token_id": EOS,
    "pad_token_id": 0,
}
_MIXED = {"sliding_window": 8, "layer_types": ["sliding_attention", "full_attention"], "head_dim": 16}
_EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2}
_PLAIN_ROPE = {"rope_type": "default", "rope_theta": 10_000.0}

ATTENDING: dict[str, tuple[str, dict[str, Any]]] = {
    "mistral": ("MistralConfig", _SIZES | {"head_dim": 16, "sliding_window": 8}),
    "gemma3": ("Gemma3TextConfig", _SIZES | _MIXED | {"query_pre_attn_scalar": 16}),
    "gemma2": ("Gemma2Config", _SIZES | _MIXED | {"query_pre_attn_scalar": 16}),
    "phi3": ("Phi3Config", _SIZES),
    "olmo2": ("Olmo2Config", _SIZES),
    "granite": (
        "GraniteConfig",
        _SIZES | {"logits_scaling": 3.0, "embedding_multiplier": 2.0, "attention_multiplier": 0.1},
    ),
    "smollm3": ("SmolLM3Config", _SIZES | {"no_rope_layers": [1, 0]}),
    "gpt2": (
        "GPT2Config",
        {"vocab_size": VOCAB_SIZE, "n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 256}
        | {"bos_token_id": None, "eos_token_id": EOS},
    ),
    "gpt_oss": ("GptOssConfig", _SIZES | _MIXED | _EXPERTS | {"rope_parameters": _PLAIN_ROPE}),
}
"""Families whose attention can be ours: name, class of the configuration, and its settings."""
OTHERS: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen3_next": (
        "Qwen3NextConfig",
        _SIZES
        | {"layer_types": ["linear_attention", "full_attention"], "head_dim": 16}
        | {"linear_num_key_heads": 2, "linear_num_value_heads": 4}
        | {"linear_key_head_dim": 16, "linear_value_head_dim": 16}
        | {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
        | {"shared_expert_intermediate_size": 32},
    ),
    "mamba": (
        "MambaConfig",
        {"vocab_size": VOCAB_SIZE, "hidden_size": 64, "num_hidden_layers": 2, "state_size": 8}
        | {"bos_token_id": None, "eos_token_id": EOS, "pad_token_id": 0},
    ),
}
"""Families with layers that carry a state from token to token."""
FAMILIES = ATTENDING | OTHERS
"""Families of which something is unlike the native decoder's first ones."""
_ROUTED = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "head_dim": 16}
NATIVE_FIRST: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaConfig", _SIZES),
    "qwen2": ("Qwen2Config", _SIZES),
    "qwen3": ("Qwen3Config", _SIZES | {"head_dim": 16}),
    "qwen3_moe": ("Qwen3MoeConfig", _SIZES | _ROUTED),
}
"""Families that the native decoder is made for."""
MORE: dict[str, tuple[str, dict[str, Any]]] = {
    "gemma": ("GemmaConfig", _SIZES | {"head_dim": 16}),
    "phi": ("PhiConfig", _SIZES),
    "cohere": ("CohereConfig", _SIZES),
    "stablelm": ("StableLmConfig", _SIZES),
    "gpt_neox": ("GPTNeoXConfig", {k: v for k, v in _SIZES.items() if k != "num_key_value_heads"}),
    "mixtral": ("MixtralConfig", _SIZES | _EXPERTS),
}
"""Families that are as widely used, and as transformers has them."""
ALL = NATIVE_FIRST | FAMILIES | MORE


def config_of(family: str) -> PretrainedConfig:
    """The configuration of a tiny model."""
    name, settings = ALL[family]
    config: PretrainedConfig = getattr(transformers, name)(**settings)
    return config


def save_tiny_hf(family: str, directory: Path, seed: int = 0) -> Path:
    """Write a tiny model with random weights, larger than at birth, so that draws are seldom a close call."""
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config_of(family))
    for parameter in model.parameters():
        parameter.data *= 2 if parameter.dim() > 1 else 1
    logging.disable_progress_bar()
    model.save_pretrained(directory)
    return directory
