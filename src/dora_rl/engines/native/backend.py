"""What the native engine asks of the device it runs on.

A Backend is chosen once, when an engine is made; everything else about the device is behind its Device. The
plan is the whole conversation: what else is here is KV on its way in or out, when nothing is under way.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from dora_rl.engines.config import EngineConfig
from dora_rl.engines.native.engine_memory import parameter_bytes, serving_dtype
from dora_rl.engines.native.scheduling.step_plan import Executor
from dora_rl.model.decoder import Decoder
from dora_rl.model.load import load_decoder

Model = Any
"""The record of a model, of the kind that a backend computes: a ModelConfig, or an HfModel."""
Served = Any
"""The modules of a version, of that kind: a Decoder, or an HfDecoder."""


class Device(Executor, Protocol):
    """An executor whose KV can also be read and written from outside."""

    def read_kv(self, blocks: Sequence[int], num_tokens: int) -> Tensor:
        """A copy of the KV of the first tokens: `[layers, 2, num_tokens, kv heads, head size]`."""
        ...

    def parked_kv(self, ticket: int) -> Tensor:
        """The KV parked under a ticket."""
        ...

    def park_kv(self, ticket: int, kv: Tensor) -> None:
        """Park KV that came from another engine under a ticket."""
        ...

    def copied(self, decoder: Served) -> Served:
        """The same weights in other memory, perhaps that of a version that is gone."""
        ...

    def prepare(self, version: int, decoder: Served) -> None:
        """Prepare to serve a version; raises if what the engine promises cannot be kept with it."""
        ...

    def forget(self, version: int) -> None:
        """Release what is kept for a version."""
        ...

    def rehearse(self) -> None:
        """Do a piece of what later steps would wait for, such as compiling a pass."""
        ...


def _with_tensors(model: Model, tensors: Mapping[str, Tensor], device: str, dtype: torch.dtype) -> Decoder:
    decoder = Decoder.empty(model, device=device, dtype=dtype)
    decoder.load_state_dict(tensors)
    return decoder


@dataclass(frozen=True, slots=True, kw_only=True)
class Backend:
    """A kind of device: where versions live, how its executor is made, and what memory that needs."""

    torch_device: str
    """The torch device that versions live on."""
    make_device: Callable[[Model, EngineConfig], Device]
    """Makes the executor of an engine, which allocates the KV cache."""
    prepared_bytes: Callable[[Model, EngineConfig], int]
    """Bytes a version needs besides its parameters."""
    workspace_bytes: Callable[[Model, EngineConfig], int]
    """Bytes a step needs besides weights and KV."""
    check_model: Callable[[Model, EngineConfig], None] = lambda model, config: None
    """Raises a ConfigError where the executor does not compute this model."""

    is_paged: bool = True
    """Whether KV lies in blocks, which can be shared, kept between turns and moved."""
    load: Callable[[Path, str, torch.dtype], Served] = lambda directory, device, dtype: load_decoder(
        directory, device=device, dtype=dtype
    )
    """Loads the modules of a version from a Hugging Face directory."""
    make: Callable[[Model, Mapping[str, Tensor], str, torch.dtype], Served] = _with_tensors
    """Makes the modules of a version from tensors by their parameters' names; or says what differs."""

    def version_bytes(self, model: Model, config: EngineConfig) -> int:
        """Bytes of one resident version."""
        return parameter_bytes(model, serving_dtype(config)) + self.prepared_bytes(model, config)
