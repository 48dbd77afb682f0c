"""Prompts of groups, computed once and shared.

A kept prefix is one more user of its blocks. It holds the KV of all tokens of the prompt but the last, which
every member computes itself for the sake of its own first draw. Kept as long as there is room: the least
recently used goes first.
"""

from dataclasses import dataclass

from dora_rl.engines.native.scheduling.blocks import BlockPool

PrefixKey = tuple[int, int]
"""The version and the group that share a computed prompt."""


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
