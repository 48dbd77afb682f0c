"""Keys and values in blocks: `[layers, blocks, kv heads, 2, block size, head size]`.

What one program of an attention kernel reads of a block, the keys and values of one head, is one stretch of
memory. Outside, KV travels as `[layers, 2, tokens, kv heads, head size]`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dora_rl.model.config import ModelConfig
from dora_rl.rollout.scheduling.limits import Limits


class BlockCache:
    """The KV of every resident sequence. Block 0 is scratch."""

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

    def copy(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy blocks (source, target), as if one after the other."""
        for batch in _independent(pairs):
            sources, targets = (self._index([pair[side] for pair in batch]) for side in (0, 1))
            self.blocks.index_copy_(1, targets, self.blocks.index_select(1, sources))

    def read(self, blocks: Sequence[int], num_tokens: int) -> Tensor:
        """A copy of the KV of the first tokens."""
        picked = self.blocks.index_select(1, self._index(blocks))
        return picked.permute(0, 3, 1, 4, 2, 5).flatten(2, 3)[:, :, :num_tokens].contiguous()

    def write(self, blocks: Sequence[int], kv: Tensor) -> None:
        """Put KV back, as `read` gave it."""
        room = len(blocks) * self._block_size
        padded = torch.nn.functional.pad(
            kv.to(self.blocks.device, non_blocking=True), (0, 0, 0, 0, 0, room - kv.shape[2])
        )
        paged = padded.unflatten(2, (len(blocks), self._block_size)).permute(0, 2, 4, 1, 3, 5)
        self.blocks.index_copy_(1, self._index(blocks), paged.contiguous())

    def _index(self, blocks: Sequence[int]) -> Tensor:
        return to_device(torch.tensor(blocks), self.blocks.device)


@dataclass(frozen=True, slots=True, kw_only=True)
class Copied:
    """Memory that a device writes to, and the moment from which it may be read."""

    values: Tensor
    event: torch.cuda.Event | None

    def wait(self) -> Tensor:
        """The values, once they are there."""
        if self.event is not None:
            self.event.synchronize()
        return self.values


def to_host(values: Tensor) -> Copied:
    """A copy in host memory that the host does not wait for."""
    if values.device.type == "cpu":
        return Copied(values=values.clone(), event=None)
    host = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
    host.copy_(values, non_blocking=True)
    event = torch.cuda.Event()
    event.record()
    return Copied(values=host, event=event)


def to_device(values: Tensor, device: torch.device) -> Tensor:
    """A copy on the device that the host does not wait for."""
    if device.type == "cpu":
        return values
    return values.pin_memory().to(device, non_blocking=True)


def _independent(pairs: Sequence[tuple[int, int]]) -> list[list[tuple[int, int]]]:
    """Consecutive pairs that touch no target of one another."""
    batches: list[list[tuple[int, int]]] = []
    written: set[int] = set()
    for source, target in pairs:
        if not batches or source in written or target in written:
            batches.append([])
            written = set()
        batches[-1].append((source, target))
        written.add(target)
    return batches
