"""Where the sequence of each slot lies in the cache."""

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor

from dora_rl.engines.config import Limits
from dora_rl.engines.native.scheduling.blocks import SCRATCH
from dora_rl.engines.native.scheduling.step_plan import Table


class BlockTables:
    """The blocks of every slot; one slot more than there are belongs to rows that only fill a tile."""

    def __init__(self, limits: Limits) -> None:
        num_slots = limits.max_running + 1
        self.filler_slot = limits.max_running
        self._block_size = limits.block_size
        self._blocks: list[list[int]] = [[] for _ in range(limits.max_running)] + [[SCRATCH]]
        self._blocks_SB = torch.full((num_slots, limits.blocks_for(limits.max_positions)), SCRATCH)
        """Block numbers of every slot as a tensor; behind a sequence's end lies what was there before."""
        self._is_run = [True] * num_slots

    def update(self, tables: Sequence[Table]) -> None:
        """Apply a plan's changes to the tables."""
        width = self._blocks_SB.shape[1]
        changed: dict[int, int] = {}
        for table in tables:
            blocks = self._blocks[table.slot]
            blocks[table.first :] = table.blocks
            joined = blocks[max(0, table.first - 1) :]
            is_run = all(after == before + 1 for before, after in pairwise(joined))
            self._is_run[table.slot] = is_run and (table.first == 0 or self._is_run[table.slot])
            changed |= dict(enumerate(table.blocks, table.slot * width + table.first))
        if changed:
            self._blocks_SB.view(-1)[torch.tensor(list(changed))] = torch.tensor(list(changed.values()))

    def cells_at(self, slots_T: Tensor, positions_T: Tensor) -> Tensor:
        """The cell of one token in each of these slots."""
        blocks_T = self._blocks_SB[slots_T, positions_T.div(self._block_size, rounding_mode="floor")]
        return blocks_T * self._block_size + positions_T % self._block_size

    def cells_of(self, slots_R: Tensor, num_tokens: int) -> Tensor:
        """The cells of the first tokens of each slot, `[slots, num_tokens]`; scratch where it has fewer."""
        blocks_RB = self._blocks_SB[slots_R, : -(-num_tokens // self._block_size)]
        cells_RBC = blocks_RB[:, :, None] * self._block_size + torch.arange(self._block_size)
        return cells_RBC.flatten(1)[:, :num_tokens]

    def run(self, slot: int, num_tokens: int) -> slice | None:
        """The cells of a slot's first tokens as a slice, or None where they do not follow one another."""
        if not self._is_run[slot]:
            return None
        first = self._blocks[slot][0] * self._block_size
        return slice(first, first + num_tokens)

    def cells(self, slot: int, num_tokens: int) -> Tensor:
        """The cells of a slot's first tokens."""
        return self.cells_of(torch.tensor([slot]), num_tokens)[0]
