"""A model from nothing: a hundred thousand seeded weights and a character tokenizer.

For demos and tests, where a real model would take minutes and a download.
"""

from pathlib import Path

import torch
from torch import Tensor, nn

from dora_rl.model.characters import character_tokenizer
from dora_rl.model.config import DefaultRope, ModelConfig
from dora_rl.model.decoder import Decoder
from dora_rl.model.save import save_decoder
from dora_rl.model.tokenizer import save_tokenizer

WIDTH = 64


def tiny_config(vocab_size: int, eos_token_ids: tuple[int, ...] = (), *, head_dim: int = 16) -> ModelConfig:
    """Two layers of width 64. Queries and keys are normalised: it bears the high rates of a short demo."""
    return ModelConfig(
        family="qwen3",
        vocab_size=vocab_size,
        hidden_size=WIDTH,
        intermediate_size=192,
        num_layers=2,
        num_heads=WIDTH // head_dim,
        num_kv_heads=WIDTH // head_dim // 2,
        head_dim=head_dim,
        max_positions=2048,
        norm_eps=1e-6,
        rope=DefaultRope(theta=10_000.0),
        is_tied=True,
        eos_token_ids=eos_token_ids,
    )


def seeded_decoder(config: ModelConfig, seed: int) -> Decoder:
    """Fresh weights: the same for the same seed, whatever the device later used."""
    decoder = Decoder.empty(config)
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in decoder.named_parameters():
        _initialise(name, parameter, config, generator)
    return decoder


def save_tiny(directory: Path, seed: int = 0, *, head_dim: int = 16) -> None:
    """A complete Hugging Face directory of a tiny model with random weights."""
    tokenizer = character_tokenizer()
    config = tiny_config(len(tokenizer), (tokenizer.eos_token_id,), head_dim=head_dim)
    save_decoder(seeded_decoder(config, seed), directory)
    save_tokenizer(tokenizer, directory)


def _initialise(name: str, parameter: Tensor, config: ModelConfig, generator: torch.Generator) -> None:
    if name.endswith("norm.weight"):
        nn.init.constant_(parameter, 0.0 if config.facts.has_offset_norms else 1.0)
    elif name.endswith("bias"):
        nn.init.zeros_(parameter)
    else:
        # Each layer adds to the residual stream twice: scaled so that its size does not grow with depth.
        adds_to_stream = name.endswith(("attention.out.weight", "mlp.down", "mlp.down.weight"))
        scale = (2 * config.num_layers) ** -0.5 if adds_to_stream else 1.0
        nn.init.normal_(parameter, std=config.initializer_range * scale, generator=generator)
