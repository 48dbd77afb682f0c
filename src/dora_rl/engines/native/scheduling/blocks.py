"""A pool of KV blocks with reference counts.

Knows block numbers, not what is in them. A block is free or referenced exactly as often as it is used. Only
full blocks are shared, so a block with more than one reference is never written. Block 0 belongs to
nobody; executors may scribble on it. A use may be spare, of something that is given up whenever room is
needed: blocks that have no other use are as good as free to whoever asks how full the pool is.
"""

from collections import Counter
from collections.abc import Iterable

SCRATCH = 0
_NUM_PROBES = 16


class BlockPool:
    """Blocks 1 to `num_blocks`, and how often each is used."""

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        # A dict is a set that remembers its order: runs do not depend on hashing.
        self._free = dict.fromkeys(range(1, num_blocks + 1))
        self._references: dict[int, int] = {}
        self._spare_uses: dict[int, int] = {}
        """How many of a block's uses are spare; a block with none is not listed."""
        self.num_spare = 0
        """How many blocks have spare uses and no other."""

    @property
    def num_free(self) -> int:
        """How many blocks can be taken."""
        return len(self._free)

    def take(self, near: int) -> int:
        """A free block, at `near` or soon after it where possible: runs of blocks are read without a copy."""
        block = next((near + step for step in range(_NUM_PROBES) if near + step in self._free), None)
        if block is None:
            block = next(iter(self._free))
        del self._free[block]
        self._references[block] = 1
        return block

    def share(self, block: int) -> None:
        """Count one more user of a block."""
        was_spare = self._is_spare(block)
        self._references[block] += 1
        self.num_spare -= was_spare

    def give(self, block: int) -> None:
        """Count one user of a block less; the last one frees it."""
        self._references[block] -= 1
        if not self._references[block]:
            del self._references[block]
            self._free[block] = None
        else:
            self.num_spare += self._is_spare(block)

    def spare(self, block: int) -> None:
        """Let one use of a block be a spare one from now on."""
        self._spare_uses[block] = self._spare_uses.get(block, 0) + 1
        self.num_spare += self._is_spare(block)

    def give_spare(self, block: int) -> None:
        """Count one spare use of a block less."""
        self.num_spare -= self._is_spare(block)
        self._spare_uses[block] -= 1
        if not self._spare_uses[block]:
            del self._spare_uses[block]
        self.give(block)

    def _is_spare(self, block: int) -> bool:
        return self._references[block] == self._spare_uses.get(block, 0)

    def check_integrity(self, uses: Iterable[int]) -> None:
        """Assert that every block is free, or referenced exactly as often as it is used."""
        counted = dict(Counter(uses))
        assert counted == self._references, f"used {counted}, referenced {self._references}"
        everything = {*self._free, *counted}
        assert everything == set(range(1, self.num_blocks + 1)), f"lost or invented blocks: {everything}"
        assert len(self._free) + len(counted) == self.num_blocks, "a block is both free and used"
        num_spare = sum(map(self._is_spare, counted))
        assert self.num_spare == num_spare, f"{self.num_spare} blocks are spare, not {num_spare}"
