"""Keys and values in blocks: `[layers, blocks, kv heads, 2, block size, head size]`.

What one program of an attention kernel reads of a block, the keys and values of one head, is one stretch of
memory. Outside, KV travels as `[layers, 2, tokens, kv heads, head size]`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dora_rl.engines.config import Limits
from dora_rl.engines.native.copies import independent
from dora_rl.model.config import ModelConfig


class BlockCache:
    """The KV of every resident sequence, in blocks. Block 0 is scratch."""

    def __init__(self, model: ModelConfig, limits: Limits, dtype: torch.dtype, device: torch.device) -> None:
        self._block_size = limits.block_size
        # Zeros, not whatever was there: what is masked is still multiplied, and must not be NaN.
        self.blocks = torch.zeros(
            (
                model.num_layers,
                limits.num_blocks + 1,
                model.num_kv_heads,
                2,
                limits.block_size,
                model.head_dim,
            ),
            dtype=dtype,
            device=device,
        )

    @property
    def token_bytes(self) -> int:
        """Bytes of the KV of one token."""
        layers, _, kv_heads, _, _, head_dim = self.blocks.shape
        return layers * 2 * kv_heads * head_dim * self.blocks.itemsize

    def copy(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy blocks (source, target), as if one after the other."""
        for batch in independent(pairs):
            sources, targets = (self._index([pair[side] for pair in batch]) for side in (0, 1))
            self.blocks.index_copy_(1, targets, self.blocks.index_select(1, sources))

    def read(self, blocks: Sequence[int], target: Tensor) -> None:
        """Copy the KV of a sequence's first tokens into `room`, on the device or the host.

        Layer by layer, here and in `write`: what lies between the two forms is then of one layer.
        """
        index = self._index(blocks)
        for layer, own in zip(self.blocks, target, strict=True):
            picked = layer.index_select(0, index).permute(2, 0, 3, 1, 4)
            own.copy_(picked.flatten(1, 2)[:, : own.shape[1]], non_blocking=True)

    def write(self, blocks: Sequence[int], kv: Tensor) -> None:
        """Write KV back in the form that `read` gave."""
        index = self._index(blocks)
        filler = (0, 0, 0, 0, 0, len(blocks) * self._block_size - kv.shape[2])
        for layer, own in zip(self.blocks, kv, strict=True):
            padded = torch.nn.functional.pad(own.to(layer.device, non_blocking=True), filler)
            paged = padded.unflatten(1, (len(blocks), self._block_size)).permute(1, 3, 0, 2, 4)
            layer.index_copy_(0, index, paged.contiguous())
        if kv.is_cuda:
            # It came from another stream, and may be let go before it is read here.
            kv.record_stream(torch.cuda.current_stream(kv.device))

    def room_for(self, num_tokens: int, device: torch.device) -> Tensor:
        """Memory for the KV of so many tokens; pinned, where it is the host's and the cache is on a GPU."""
        layers, _, kv_heads, _, _, head_dim = self.blocks.shape
        is_pinned = device.type == "cpu" and self.blocks.is_cuda
        return torch.empty(
            (layers, 2, num_tokens, kv_heads, head_dim),
            dtype=self.blocks.dtype,
            device=device,
            pin_memory=is_pinned,
        )

    def _index(self, blocks: Sequence[int]) -> Tensor:
        return to_device(torch.tensor(blocks), self.blocks.device)


@dataclass(frozen=True, slots=True, kw_only=True)
class Copied:
    """Memory that a device writes to, and the moment from which it may be read."""

    values: Tensor
    event: torch.cuda.Event | None

    def wait(self) -> Tensor:
        """Wait until the copy is done; returns its values."""
        if self.event is not None:
            self.event.synchronize()
        return self.values


def to_host(values: Tensor) -> Copied:
    """Start a copy to host memory that the host does not wait for."""
    if values.device.type == "cpu":
        return Copied(values=values.clone(), event=None)
    host = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
    host.copy_(values, non_blocking=True)
    return arriving(host, values.device)


def arriving(values: Tensor, source: torch.device) -> Copied:
    """Host memory filled by what was launched so far on this stream, readable once that is over."""
    if source.type == "cpu":
        return Copied(values=values, event=None)
    event = torch.cuda.Event()
    event.record()
    return Copied(values=values, event=event)


def to_device(values: Tensor, device: torch.device) -> Tensor:
    """Start a copy to the device that the host does not wait for."""
    if device.type == "cpu":
        return values
    return values.pin_memory().to(device, non_blocking=True)
