"""Keys and values in blocks, and attention over them.

The cache is one tensor, `[layers, 2, cells, kv heads, head size]`; block `b` is the cells from
`b * block_size` on. Where a sequence's blocks follow one another its keys are read in place, otherwise they
are gathered first. Block 0 is scratch: rows that only fill a tile write there.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from dora_rl.model.config import ModelConfig
from dora_rl.rollout.scheduling.limits import Limits


class PagedCache:
    """The KV of every resident sequence."""

    def __init__(self, config: ModelConfig, limits: Limits, dtype: torch.dtype) -> None:
        num_cells = (limits.num_blocks + 1) * limits.block_size
        self.block_size = limits.block_size
        # Zeros, not whatever was there: what is masked is still multiplied, and must not be NaN.
        self.cells = torch.zeros(
            config.num_layers, 2, num_cells, config.num_kv_heads, config.head_dim, dtype=dtype
        )

    @staticmethod
    def cell_bytes(config: ModelConfig, dtype: torch.dtype) -> int:
        """Bytes of the KV of one token."""
        return config.num_layers * 2 * config.kv_size * dtype.itemsize

    def copy_block(self, source: int, target: int) -> None:
        """Copy one block to another."""
        self._block(target).copy_(self._block(source))

    def read(self, blocks: Sequence[int], num_tokens: int) -> Tensor:
        """A copy of the KV of the first tokens: `[layers, 2, num_tokens, kv heads, head size]`."""
        return self.cells.index_select(2, self.cells_of(torch.tensor(blocks))[:num_tokens])

    def write(self, blocks: Sequence[int], kv: Tensor) -> None:
        """Put KV back, as `read` gave it."""
        self.cells.index_copy_(2, self.cells_of(torch.tensor(blocks))[: kv.shape[2]], kv)

    def cells_of(self, blocks_B: Tensor) -> Tensor:
        """The cells of blocks, in order."""
        return (blocks_B[:, None] * self.block_size + torch.arange(self.block_size)).flatten()

    def _block(self, block: int) -> Tensor:
        return self.cells[:, :, block * self.block_size : (block + 1) * self.block_size]


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """Consecutive rows of a pass that belong to one sequence, and where their context lies."""

    first_row: int
    num_rows: int
    context: slice | Tensor
    """The cells of everything the last row sees, in order: a slice where they are one run."""
    is_visible: Tensor | None
    """`[rows, context]`; None for a single row, which sees all."""


class PagedAttention:
    """Writes the keys and values of a pass to the cache, then lets every row see its own sequence.

    Spans cover all rows of the pass, in order.
    """

    def __init__(self, cache: PagedCache, cells_T: Tensor, spans: Sequence[Span]) -> None:
        self._cells = cache.cells
        self._cells_T = cells_T
        self._spans = spans

    def __call__(self, layer: int, q_THD: Tensor, k_TKD: Tensor, v_TKD: Tensor) -> Tensor:
        keys, values = self._cells[layer].unbind(0)
        keys.index_copy_(0, self._cells_T, k_TKD)
        values.index_copy_(0, self._cells_T, v_TKD)
        # Views that all spans have in common are made once: a step has thousands of spans and layers.
        q_TKGD = q_THD.view(len(q_THD), k_TKD.shape[1], -1, q_THD.shape[2])
        q_1KGD = q_TKGD.unsqueeze(1).unbind(0)
        k_1KLD, v_1KLD = keys.transpose(0, 1)[None], values.transpose(0, 1)[None]
        mixed = []
        for span in self._spans:
            k, v = _context(k_1KLD, span.context), _context(v_1KLD, span.context)
            if span.is_visible is None:
                mixed.append(functional.scaled_dot_product_attention(q_1KGD[span.first_row], k, v))
            else:
                q_CKGD = q_TKGD[span.first_row : span.first_row + span.num_rows]
                mixed.append(_attend_chunk(q_CKGD, k, v, span.is_visible))
        return torch.cat(mixed).flatten(1, 2)


def _context(cells_1KLD: Tensor, context: slice | Tensor) -> Tensor:
    if isinstance(context, slice):
        return cells_1KLD.narrow(2, context.start, context.stop - context.start)
    # Gathered cell by cell, as they lie in memory.
    return cells_1KLD.transpose(1, 2)[:, context].transpose(1, 2)


def _attend_chunk(q_CKGD: Tensor, k_1KLD: Tensor, v_1KLD: Tensor, is_visible: Tensor) -> Tensor:
    """Query heads that share keys go in as rows of one product: no key is repeated."""
    num_rows, _, group, _ = q_CKGD.shape
    q_KRD = q_CKGD.permute(1, 2, 0, 3).flatten(1, 2)
    mixed_KRD: Tensor = functional.scaled_dot_product_attention(
        q_KRD[None], k_1KLD, v_1KLD, is_visible.repeat(group, 1)
    )[0]
    mixed_CKGD: Tensor = mixed_KRD.unflatten(1, (group, num_rows)).permute(2, 0, 1, 3)
    return mixed_CKGD
