"""What the native engine asks of the device it runs on.

A Backend is chosen once, when an engine is made; everything else about the device is behind its Device. The
plan is the whole conversation: what else is here is KV on its way in or out, when nothing is under way.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from dora_rl.engines.config import EngineConfig
from dora_rl.engines.native.engine_memory import parameter_bytes, serving_dtype
from dora_rl.engines.native.scheduling.step_plan import Executor
from dora_rl.model.config import ModelConfig
from dora_rl.model.decoder import Decoder


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

    def copied(self, decoder: Decoder) -> Decoder:
        """The same weights in other memory, perhaps that of a version that is gone."""
        ...

    def prepare(self, version: int, decoder: Decoder) -> None:
        """Prepare to serve a version; raises if what the engine promises cannot be kept with it."""
        ...

    def forget(self, version: int) -> None:
        """Release what is kept for a version."""
        ...

    def rehearse(self) -> None:
        """Do a piece of what later steps would wait for, such as compiling a pass."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Backend:
    """A kind of device: where versions live, how its executor is made, and what memory that needs."""

    torch_device: str
    """The torch device that versions live on."""
    make_device: Callable[[ModelConfig, EngineConfig], Device]
    """Makes the executor of an engine, which allocates the KV cache."""
    prepared_bytes: Callable[[ModelConfig, EngineConfig], int]
    """Bytes a version needs besides its parameters."""
    workspace_bytes: Callable[[ModelConfig, EngineConfig], int]
    """Bytes a step needs besides weights and KV."""
    check_model: Callable[[ModelConfig, EngineConfig], None]
    """Raises a ConfigError where the executor does not compute this model."""

    def version_bytes(self, model: ModelConfig, config: EngineConfig) -> int:
        """Bytes of one resident version."""
        return parameter_bytes(model, serving_dtype(config)) + self.prepared_bytes(model, config)
