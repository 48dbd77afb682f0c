"""The memory of a native engine: its configuration checked against a limit before anything is allocated."""

from math import prod

import torch

from dora_rl.core.errors import ConfigError
from dora_rl.engines.config import EngineConfig
from dora_rl.engines.memory_ledger import MemoryLedger
from dora_rl.engines.native.paged import PagedCache
from dora_rl.model.config import ModelSizes
from dora_rl.model.language_model import pieces_of


def serving_dtype(config: EngineConfig) -> torch.dtype:
    """The torch dtype of weights, activations and KV."""
    dtype: torch.dtype = getattr(torch, config.dtype)
    return dtype


def checked_ledger(
    model: ModelSizes, config: EngineConfig, *, workspace_bytes: int, version_bytes: int
) -> MemoryLedger:
    """A ledger with everything reserved that is allocated at start, and room for all versions."""
    limits, dtype = config.limits, serving_dtype(config)
    ledger = MemoryLedger(device_bytes=config.device_bytes, host_bytes=config.host_bytes)
    block_bytes = limits.block_size * PagedCache.cell_bytes(model, dtype)
    ledger.reserve("device", "KV", (limits.num_blocks + 1) * block_bytes)
    ledger.reserve("device", "workspace", workspace_bytes)
    ledger.reserve("host", "offloaded KV", limits.num_host_blocks * block_bytes)
    # Reserved and released again: versions come later, and must find room then.
    ledger.reserve("device", "versions", config.max_versions * version_bytes)
    ledger.release("device", "versions")
    return ledger


def check_support(model: ModelSizes, config: EngineConfig) -> None:
    """Refuse settings that the native engine does not support, before anything is allocated."""
    if config.limits.max_positions > model.max_positions:
        raise ConfigError(
            f"sequences of {config.limits.max_positions} tokens; the model takes {model.max_positions}"
        )


def parameter_bytes(model: ModelSizes, dtype: torch.dtype) -> int:
    """Bytes of the parameters of one version."""
    return sum(prod(piece.shape) for piece in pieces_of(model)) * dtype.itemsize
