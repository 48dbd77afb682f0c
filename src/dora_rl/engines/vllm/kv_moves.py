"""KV of live requests that leave a vLLM engine and enter another, as vLLM's scheduler sees it: a connector.

A request leaves with whole blocks, in whatever layout the kernels of both ends share. One that arrives waits
in host memory until vLLM has blocks for it; its tokens then count as computed, and their KV is written before
the step that goes on with them. Both of vLLM's roles are in this process, so what is loaded travels in the
metadata of the step.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1, KVConnectorMetadata

from dora_rl.engines.errors import RequestError


class Arriving(NamedTuple):
    """KV that waits for its request to be admitted."""

    kv: Tensor
    """`[layers, ...]`, with blocks where a layer's cache has them."""
    num_tokens: int
    num_blocks: int


@dataclass
class Loads(KVConnectorMetadata):  # type: ignore[misc]
    """The blocks of one step that are written before it computes."""

    writes: list[tuple[Tensor, int, list[int], Tensor]] = field(default_factory=list)
    """A layer's cache, the axis of its blocks, which of them, and what they hold."""


class KvMoves(KVConnectorBase_V1):  # type: ignore[misc]
    """Gives the KV of a request away, and to requests that bring theirs."""

    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any) -> None:
        super().__init__(vllm_config=vllm_config, role=role, kv_cache_config=kv_cache_config)
        self._layers = vllm_config.compilation_config.static_forward_context
        self._num_blocks = kv_cache_config.num_blocks
        self._block_size: int = vllm_config.cache_config.block_size
        self._arriving: dict[str, Arriving] = {}
        self._loads = Loads()
        self.num_loaded = 0
        """Tokens whose KV was brought since the engine began."""

    # --- what the engine asks -------------------------------------------------------------------

    @property
    def num_waiting_blocks(self) -> int:
        """Blocks that wait in host memory."""
        return sum(each.num_blocks for each in self._arriving.values())

    def read(self, blocks: Sequence[int], num_tokens: int) -> Tensor:
        """The KV of these tokens, in host memory: of every layer the blocks that hold them."""
        held = torch.tensor(blocks[: self._blocks_for(num_tokens)])
        return torch.stack(
            [cache.index_select(axis, held.to(cache.device)).cpu() for cache, axis in self._caches()]
        )

    def bring(self, name: str, kv: Tensor, num_tokens: int) -> None:
        """Keep KV for a request that is about to be added under this name."""
        self._arriving[name] = Arriving(kv, num_tokens, self._blocks_for(num_tokens))

    def check(self, kv: Tensor, num_tokens: int) -> None:
        """Refuse KV that is not of so many tokens of this model, in this engine's layout."""
        caches, number = list(self._caches()), self._blocks_for(num_tokens)
        cache, axis = caches[0]
        shape = [len(caches), *cache.shape]
        shape[axis + 1] = number
        if list(kv.shape) != shape or kv.dtype != cache.dtype:
            raise RequestError(f"KV {kv.dtype} {list(kv.shape)} is not of {num_tokens} tokens of this engine")

    def _blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self._block_size)

    def _caches(self) -> Iterator[tuple[Tensor, int]]:
        """The cache of every layer, and the axis along which its blocks lie."""
        for layer in self._layers.values():
            cache = getattr(layer, "kv_cache", None)
            if isinstance(cache, Tensor):
                axis = 0 if cache.shape[0] == self._num_blocks else 1
                assert cache.shape[axis] == self._num_blocks, f"no axis of blocks: {list(cache.shape)}"
                yield cache, axis

    # --- what vLLM's scheduler asks -------------------------------------------------------------

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int, bool]:
        """How many tokens a request brings beyond those whose KV is here; they are written at once."""
        found = self._arriving.get(request.request_id)
        return (0 if found is None else max(0, found.num_tokens - num_computed_tokens)), False

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        """Plan to write what an admitted request brings; blocks that were here already are not touched."""
        found = self._arriving.pop(request.request_id, None)
        if found is None or not num_external_tokens:
            return
        first = (found.num_tokens - num_external_tokens) // self._block_size
        (held,) = blocks.get_block_ids()
        self.num_loaded += num_external_tokens
        for (cache, axis), own in zip(self._caches(), found.kv, strict=True):
            part = own.narrow(axis, first, found.num_blocks - first)
            self._loads.writes.append((cache, axis, held[first : found.num_blocks], part))

    def build_connector_meta(self, scheduler_output: Any) -> Loads:
        """What is written before this step."""
        loads, self._loads = self._loads, Loads()
        return loads

    def request_finished(self, request: Any, block_ids: list[int]) -> tuple[bool, None]:
        """Forget what a request brought that was never admitted; its blocks may be freed."""
        self._arriving.pop(request.request_id, None)
        return False, None

    # --- what vLLM's worker asks ----------------------------------------------------------------

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        """Write the KV that requests of this step brought."""
        for cache, axis, blocks, kv in self._get_connector_metadata().writes:
            index = torch.tensor(blocks, device=cache.device)
            cache.index_copy_(axis, index, kv.to(cache.device))

    def wait_for_layer_load(self, layer_name: str) -> None:
        """Return: everything was written as the step began."""

    def save_kv_layer(self, layer_name: str, kv_layer: Tensor, attn_metadata: Any, **kwargs: Any) -> None:
        """Save nothing: a request that leaves is read whole."""

    def wait_for_save(self) -> None:
        """Return: nothing is being saved."""
