"""Small random models of every family and variant, built by transformers: what the decoder must equal."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

SIZES = {
    "vocab_size": 97,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": None,
}
EXPERTS = {"num_experts": 6, "num_experts_per_tok": 3, "moe_intermediate_size": 24}
LINEAR = {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.5}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 5e5,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 64}
YARN_IN_FULL = YARN | {
    "beta_fast": 16.0,
    "beta_slow": 0.5,
    "truncate": False,
    "mscale": 0.7,
    "mscale_all_dim": 1.3,
}
MULTIPLIERS = {
    "attention_multiplier": 0.11,
    "embedding_multiplier": 12.0,
    "residual_multiplier": 0.22,
    "logits_scaling": 3.0,
}
LONG = {
    "rope_type": "longrope",
    "rope_theta": 1e4,
    "short_factor": [1.0, 1.1, 1.3, 1.6, 2.0, 2.5],
    "long_factor": [1.0, 2.0, 4.0, 8.0, 16.0, 32.0],
    "partial_rotary_factor": 0.75,
}
GEMMA = {
    "num_hidden_layers": 3,
    "head_dim": 16,
    "query_pre_attn_scalar": 24,
    "sliding_window_pattern": 2,
}

VARIANTS: dict[str, dict[str, Any]] = {
    "llama": {"model_type": "llama"},
    "llama tied": {"model_type": "llama", "tie_word_embeddings": True},
    "llama biased": {"model_type": "llama", "attention_bias": True},
    "llama without groups": {"model_type": "llama", "num_key_value_heads": 6},
    "llama linear rope": {"model_type": "llama", "rope_parameters": LINEAR},
    "llama llama3 rope": {"model_type": "llama", "rope_parameters": LLAMA3},
    "llama yarn rope": {"model_type": "llama", "rope_parameters": YARN},
    "qwen2": {"model_type": "qwen2"},
    "qwen2 tied": {"model_type": "qwen2", "tie_word_embeddings": True},
    "qwen2 yarn rope": {"model_type": "qwen2", "rope_parameters": YARN_IN_FULL},
    "qwen3": {"model_type": "qwen3", "head_dim": 16},
    "qwen3 tied": {"model_type": "qwen3", "head_dim": 16, "tie_word_embeddings": True},
    "qwen3_moe": {"model_type": "qwen3_moe", "head_dim": 16, **EXPERTS, "norm_topk_prob": True},
    "qwen3_moe tied": {"model_type": "qwen3_moe", **EXPERTS, "tie_word_embeddings": True},
    "qwen3_moe some dense": {
        "model_type": "qwen3_moe",
        **EXPERTS,
        "num_hidden_layers": 4,
        "decoder_sparse_step": 2,
        "mlp_only_layers": [1],
    },
    "mistral": {"model_type": "mistral", "sliding_window": None, "head_dim": 16},
    "mistral window": {"model_type": "mistral", "sliding_window": 20},
    "smollm3": {"model_type": "smollm3", "num_hidden_layers": 5, "rope_parameters": LINEAR},
    "smollm3 layers named": {
        "model_type": "smollm3",
        "no_rope_layers": [0, 1, 0],
        "attention_bias": True,
        "tie_word_embeddings": False,
    },
    "granite": {"model_type": "granite", **MULTIPLIERS},
    "granite tied": {
        "model_type": "granite",
        **MULTIPLIERS,
        "attention_bias": True,
        "tie_word_embeddings": True,
    },
    "olmo2": {"model_type": "olmo2"},
    "olmo2 without groups": {"model_type": "olmo2", "num_key_value_heads": 6, "attention_bias": True},
    "phi3": {"model_type": "phi3"},
    "phi3 window": {"model_type": "phi3", "sliding_window": 20, "num_key_value_heads": 6},
    "phi3 longrope": {
        "model_type": "phi3",
        "num_attention_heads": 3,
        "num_key_value_heads": 1,
        "original_max_position_embeddings": 140,
        "rope_parameters": LONG,
    },
    "gemma3": {"model_type": "gemma3_text", **GEMMA, "sliding_window": 20},
    "gemma3 scaled rope": {
        "model_type": "gemma3_text",
        **GEMMA,
        "sliding_window": 9,
        "layer_types": ["full_attention", "sliding_attention", "full_attention"],
        "rope_parameters": {
            "full_attention": {"rope_type": "linear", "rope_theta": 1e6, "factor": 8.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e3},
        },
        "tie_word_embeddings": False,
    },
}


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> None:
    # Models this small gain nothing from threads, and on a busy machine lose seconds waiting for them.
    torch.set_num_threads(1)


@pytest.fixture(params=VARIANTS, scope="session")
def reference(request: pytest.FixtureRequest) -> PreTrainedModel:
    """A model of transformers, every one of its parameters random."""
    torch.manual_seed(0)
    config = AutoConfig.for_model(**SIZES | VARIANTS[request.param])
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    for parameter in model.parameters():
        # Norms of one and biases of zero would hide a tensor in the wrong place.
        parameter.data += 0.15 * torch.randn_like(parameter)
    return model


@pytest.fixture(scope="session")
def directory(reference: PreTrainedModel, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The reference as transformers saves it."""
    path = tmp_path_factory.mktemp("reference")
    reference.save_pretrained(path)
    return path


@pytest.fixture
def sequences() -> list[list[int]]:
    """Token sequences of mixed lengths, one of them a single token."""
    generator = torch.Generator().manual_seed(1)
    return [torch.randint(0, 97, (length,), generator=generator).tolist() for length in (7, 1, 130, 24)]
