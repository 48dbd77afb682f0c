"""Where the sequence of each slot lies in the cache."""

from itertools import pairwise

import torch
from torch import Tensor

from dora_rl.rollout.scheduling.blocks import SCRATCH
from dora_rl.rollout.scheduling.plan import Table


class BlockTables:
    """The blocks of every slot; one slot more than there are belongs to rows that only fill a tile."""

    def __init__(self, num_slots: int, block_size: int) -> None:
        self.filler_slot = num_slots
        self._block_size = block_size
        self._blocks: list[list[int]] = [[] for _ in range(num_slots)] + [[SCRATCH]]
        self._is_run = [True] * (num_slots + 1)

    def update(self, table: Table) -> None:
        """Take in a change."""
        blocks = self._blocks[table.slot]
        blocks[table.first :] = table.blocks
        joined = blocks[max(0, table.first - 1) :]
        is_run = all(after == before + 1 for before, after in pairwise(joined))
        self._is_run[table.slot] = is_run and (table.first == 0 or self._is_run[table.slot])

    def cell(self, slot: int, position: int) -> int:
        """The cell of one token."""
        block, offset = divmod(position, self._block_size)
        return self._blocks[slot][block] * self._block_size + offset

    def run(self, slot: int, num_tokens: int) -> slice | None:
        """The cells of the first tokens where they follow one another."""
        if not self._is_run[slot]:
            return None
        first = self._blocks[slot][0] * self._block_size
        return slice(first, first + num_tokens)

    def cells(self, slot: int, num_tokens: int) -> Tensor:
        """The cells of the first tokens."""
        blocks = torch.tensor(self._blocks[slot][: -(-num_tokens // self._block_size)])
        cells = blocks[:, None] * self._block_size + torch.arange(self._block_size)
        return cells.flatten()[:num_tokens]
