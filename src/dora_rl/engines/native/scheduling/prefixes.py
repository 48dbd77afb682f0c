"""KV that is computed once and shared: prompts of groups, and what branches of an episode have in common.

A kept prefix is one more user of its blocks. Of a group's prompt it holds the KV of all tokens but the last,
which every member computes itself for the sake of its own first draw. Kept as long as there is room: the
least recently used goes first, remnants before prompts.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from dora_rl.engines.native.scheduling.blocks import BlockPool

PrefixKey = tuple[int, int]
"""The version and the group that share a computed prompt."""
LineageKey = tuple[int, int]
"""The version and the lineage of requests that begin alike: branches of one episode."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prefix:
    """The KV of the first `num_tokens` tokens of a prompt."""

    prompt: tuple[int, ...]
    blocks: tuple[int, ...]
    num_tokens: int


class Prefixes:
    """The computed prompts of groups that an engine keeps, the least recently used first."""

    def __init__(self, pool: BlockPool) -> None:
        self._pool = pool
        self._kept: dict[PrefixKey, Prefix] = {}

    def __contains__(self, key: PrefixKey | None) -> bool:
        return key in self._kept

    def keep(self, key: PrefixKey, prefix: Prefix) -> None:
        """Keep a prefix, taking over one use of each of its blocks."""
        assert key not in self._kept, f"prefix {key} is kept already"
        self._kept[key] = prefix

    def find(self, key: PrefixKey | None, prompt: tuple[int, ...]) -> Prefix | None:
        """The kept prefix of this very prompt or None; it is now the most recently used."""
        prefix = self._kept.get(key) if key else None
        if key is None or prefix is None or prefix.prompt != prompt:
            return None
        self._kept[key] = self._kept.pop(key)
        return prefix

    def evict(self) -> bool:
        """Give up the least recently used prefix; False when there is none."""
        if not self._kept:
            return False
        self._give_up(next(iter(self._kept)))
        return True

    def drop_version(self, version: int) -> None:
        """Give up every prefix computed with a version."""
        for key in [key for key in self._kept if key[0] == version]:
            self._give_up(key)

    def uses(self) -> list[int]:
        """Every block of a kept prefix, as often as prefixes use it."""
        return [block for prefix in self._kept.values() for block in prefix.blocks]

    def _give_up(self, key: PrefixKey) -> None:
        for block in self._kept.pop(key).blocks:
            self._pool.give(block)


@dataclass(frozen=True, slots=True, kw_only=True)
class Remnant:
    """The KV of the first tokens of a branch that gave way to another one."""

    key: LineageKey
    tokens: list[int]
    """Tokens whose KV it is."""
    blocks: tuple[int, ...]


class Remnants:
    """What is left of branches that gave way, for those that begin alike; the least recently used first."""

    def __init__(self, pool: BlockPool, block_size: int) -> None:
        self._pool = pool
        self._block_size = block_size
        self._kept: dict[int, Remnant] = {}
        """By serial number, in the order of their last use."""
        self._of: dict[LineageKey, list[int]] = {}
        self._next = 0

    def keep(self, key: LineageKey, tokens: list[int], blocks: tuple[int, ...]) -> None:
        """Keep the KV of these tokens, taking over one use of each block; it replaces what begins it."""
        for serial in list(self._of.get(key, ())):
            older = self._kept[serial].tokens
            if older == tokens[: len(older)]:
                self._give_up(serial)
        for block in blocks:
            self._pool.spare(block)
        self._next += 1
        self._kept[self._next] = Remnant(key=key, tokens=tokens, blocks=blocks)
        self._of.setdefault(key, []).append(self._next)

    def find(self, key: LineageKey | None, tokens: Sequence[int]) -> Prefix | None:
        """The longest beginning of these tokens that is kept, at least a block; it is now used most recently.

        The last token is left out: it is computed for the sake of the draw behind it.
        """
        found, most = None, self._block_size - 1
        for serial in self._of.get(key, ()) if key is not None else ():
            num_common = _num_common(self._kept[serial].tokens, tokens, len(tokens) - 1)
            if num_common > most:
                found, most = serial, num_common
        if found is None:
            return None
        self._kept[found] = remnant = self._kept.pop(found)
        num_blocks = -(-most // self._block_size)
        return Prefix(prompt=(), blocks=remnant.blocks[:num_blocks], num_tokens=most)

    def evict(self) -> bool:
        """Give up the least recently used remnant; False when there is none."""
        if not self._kept:
            return False
        self._give_up(next(iter(self._kept)))
        return True

    def drop_version(self, version: int) -> None:
        """Give up everything computed with a version."""
        for serial in [serial for serial, each in self._kept.items() if each.key[0] == version]:
            self._give_up(serial)

    def uses(self) -> list[int]:
        """Every block of a remnant, as often as remnants use it."""
        return [block for remnant in self._kept.values() for block in remnant.blocks]

    def _give_up(self, serial: int) -> None:
        remnant = self._kept.pop(serial)
        self._of[remnant.key].remove(serial)
        if not self._of[remnant.key]:
            del self._of[remnant.key]
        for block in remnant.blocks:
            self._pool.give_spare(block)


def _num_common(first: Sequence[int], second: Sequence[int], most: int) -> int:
    """How many tokens two lists begin with alike, at most so many."""
    low, high = 0, min(most, len(first), len(second))
    while low < high:
        middle = (low + high + 1) // 2
        if first[low:middle] == second[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
