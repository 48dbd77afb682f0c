"""Models of known shapes with random weights: speed does not depend on what they have learned."""

from collections.abc import Mapping

import torch
from msgspec.structs import replace
from torch import Tensor

from dora_rl.model.config import DefaultRope, Experts, ModelConfig
from dora_rl.model.decoder import Decoder


def _qwen3(hidden_size: int, intermediate_size: int) -> ModelConfig:
    return ModelConfig(
        family="qwen3",
        vocab_size=151_936,
        hidden_size=hidden_size,
        intermediate_size=intermediate_size,
        num_layers=28,
        num_heads=16,
        num_kv_heads=8,
        head_dim=128,
        max_positions=40_960,
        norm_eps=1e-6,
        rope=DefaultRope(theta=1_000_000.0),
        is_tied=True,
        dtype="bfloat16",
    )


QWEN3_06B = _qwen3(1024, 3072)
QWEN3_17B = _qwen3(2048, 6144)
QWEN3_8B = replace(_qwen3(4096, 12_288), num_layers=36, num_heads=32, is_tied=False)
QWEN3_MOE_15B = replace(
    _qwen3(2048, 6144),
    family="qwen3_moe",
    num_layers=24,
    num_heads=32,
    num_kv_heads=4,
    is_tied=False,
    experts=Experts(num_experts=128, num_active=8, intermediate_size=768, is_normalised=True),
)
"""Qwen3-30B-A3B with half of its layers, so that several versions fit on one GPU."""

SMOLLM2_135M = ModelConfig(
    family="llama",
    vocab_size=49_152,
    hidden_size=576,
    intermediate_size=1536,
    num_layers=30,
    num_heads=9,
    num_kv_heads=3,
    head_dim=64,
    max_positions=8192,
    norm_eps=1e-5,
    rope=DefaultRope(theta=100_000.0),
    is_tied=True,
)

TINY = ModelConfig(
    family="qwen3",
    vocab_size=128,
    hidden_size=64,
    intermediate_size=128,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    head_dim=16,
    max_positions=40_960,
    norm_eps=1e-6,
    rope=DefaultRope(theta=10_000.0),
    is_tied=True,
)

TINY_MOE = replace(
    TINY,
    family="qwen3_moe",
    num_layers=4,
    experts=Experts(num_experts=16, num_active=4, intermediate_size=32, is_normalised=True),
)

SHAPES = {
    "qwen3-0.6b": QWEN3_06B,
    "qwen3-1.7b": QWEN3_17B,
    "qwen3-8b": QWEN3_8B,
    "qwen3-moe-15b": QWEN3_MOE_15B,
    "smollm2-135m": SMOLLM2_135M,
    "tiny": TINY,
    "tiny-moe": TINY_MOE,
}


def random_weights(model: ModelConfig, *, seed: int, device: str, dtype: torch.dtype) -> Mapping[str, Tensor]:
    """Every parameter, small enough that activations stay finite; a function of seed and kind of device."""
    decoder = Decoder.empty(model, device=device, dtype=dtype).requires_grad_(False)
    generator = torch.Generator(device).manual_seed(seed)
    for name, parameter in decoder.named_parameters():
        if name.endswith("norm.weight"):
            parameter.fill_(0.0 if model.facts.has_offset_norms else 1.0)
        else:
            parameter.normal_(std=model.initializer_range, generator=generator)
    return decoder.state_dict()
