"""A trainer from a model: where its weights go, how they are stored, what else it needs."""

from collections.abc import Mapping
from copy import deepcopy
from pathlib import Path

import torch
from torch import Tensor

from dora_rl.core.errors import ConfigError
from dora_rl.core.named import Objects
from dora_rl.core.recipe.trainer_config import TrainerConfig
from dora_rl.model.config import ModelSizes
from dora_rl.model.hf.hf_decoder import HfDecoder
from dora_rl.model.language_model import LanguageModel
from dora_rl.trainer.adapter import load_factors, merge_adapter
from dora_rl.trainer.kept import KeptVersions
from dora_rl.trainer.lora import LoraWeights
from dora_rl.trainer.policy import Policy
from dora_rl.trainer.ranks import Alone, Ranks
from dora_rl.trainer.trained_weights import FullWeights, Weights
from dora_rl.trainer.trainer import Trainer


def trainer_of(
    decoder: LanguageModel,
    config: TrainerConfig,
    *,
    ranks: Ranks | None = None,
    max_response_tokens: int | None = None,
    objects: Objects | None = None,
) -> Trainer:
    """Make a trainer of a float32 decoder, which it owns from now on; of several ranks, this one's part."""
    ranks = ranks or Alone()
    serving = getattr(torch, config.serving_dtype)
    adapter = config.lora.adapter if config.lora is not None else None
    factors = load_factors(Path(adapter)) if adapter is not None else None
    reference = _reference(decoder, config, serving, factors)
    return Trainer(
        _weights(policy_of(decoder, config), config, serving, ranks, factors),
        config,
        reference=reference,
        ranks=ranks,
        kept=_kept(decoder, config, serving),
        max_response_tokens=max_response_tokens,
        objects=objects,
    )


def _kept(decoder: LanguageModel, config: TrainerConfig, serving: torch.dtype) -> KeptVersions | None:
    if not config.kept_versions:
        return None
    return KeptVersions(
        decoder,
        config.kept_versions,
        dtype=serving,
        attention=config.attention,
    )


def _weights(
    policy: Policy,
    config: TrainerConfig,
    serving: torch.dtype,
    ranks: Ranks,
    factors: Mapping[str, Tensor] | None,
) -> Weights:
    if config.lora is None:
        if ranks.size == 1:
            return FullWeights(policy, serving)
        # Its part of torch takes seconds to import.
        from dora_rl.trainer.sharded import ShardedWeights

        return ShardedWeights(policy, serving)
    weights = LoraWeights(policy, serving, config.lora, seed=config.seed, ranks=ranks)
    if factors is not None:
        weights.start_from(factors)
    return weights


def policy_of(decoder: LanguageModel, config: TrainerConfig) -> Policy:
    """The module to train, set up as configured."""
    decoder.is_checkpointed = config.gradient_checkpointing
    is_native = not isinstance(decoder, HfDecoder)
    if (is_native and decoder.device.type == "cuda") if config.compile is None else config.compile:
        decoder.fuse()
    if config.fused_head and not decoder.has_plain_head:
        raise ConfigError(
            "trainer.fused_head = true is for logits that are a product with one matrix, which this model's "
            "are not",
            hint="leave trainer.fused_head out",
        )
    return Policy(
        decoder,
        critic=config.critic,
        attention=config.attention,
        fused_head=config.fused_head,
        load_balance=_load_balance(decoder.config, config),
        replays_routers=_replays_routers(decoder.config, config),
    )


def _replays_routers(model: ModelSizes, config: TrainerConfig) -> bool:
    if config.router_replay and model.experts is None:
        raise ConfigError(
            "trainer.router_replay is for a mixture of experts, and the model is none", hint="leave it out"
        )
    return config.router_replay


def _load_balance(model: ModelSizes, config: TrainerConfig) -> float | None:
    """The coefficient of the load-balance loss, that of the model where the recipe leaves it to it."""
    if config.load_balance is None:
        return None
    if model.experts is None:
        raise ConfigError(
            "trainer.load_balance is for a mixture of experts, and the model is none", hint="leave it out"
        )
    return model.experts.balance_coefficient if config.load_balance == "model" else config.load_balance


def _reference(
    decoder: LanguageModel, config: TrainerConfig, serving: torch.dtype, factors: Mapping[str, Tensor] | None
) -> Policy | None:
    """The policy that training starts from, frozen: the model, with its adapter where it starts from one."""
    if config.algorithm.kl is None:
        return None
    frozen = deepcopy(decoder)
    if factors is not None and config.lora is not None:
        merge_adapter(frozen, config.lora, factors)
    frozen = frozen.to(serving).requires_grad_(False)
    return Policy(frozen, attention=config.attention)
