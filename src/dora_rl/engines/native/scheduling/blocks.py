"""A pool of KV blocks with reference counts.

Knows block numbers, not what is in them. A block is free or referenced exactly as often as it is used. Only
full blocks are shared, so a block with more than one reference is never written. Block 0 belongs to
nobody; executors may scribble on it.
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
        self._references[block] += 1

    def give(self, block: int) -> None:
        """Count one user of a block less; the last one frees it."""
        self._references[block] -= 1
        if not self._references[block]:
            del self._references[block]
            self._free[block] = None

    def check_integrity(self, uses: Iterable[int]) -> None:
        """Assert that every block is free, or referenced exactly as often as it is used."""
        counted = dict(Counter(uses))
        assert counted == self._references, f"used {counted}, referenced {self._references}"
        everything = {*self._free, *counted}
        assert everything == set(range(1, self.num_blocks + 1)), f"lost or invented blocks: {everything}"
        assert len(self._free) + len(counted) == self.num_blocks, "a block is both free and used"
