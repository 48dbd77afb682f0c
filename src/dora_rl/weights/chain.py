"""Which files a version needs: the nearest anchor before it, and every delta since.

Knows version numbers and sizes only, no files.
"""

from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass

from dora_rl.core.errors import ConfigError
from dora_rl.core.record import Record
from dora_rl.weights.container import Kind

_FAR = 16
"""Versions apart from which on nobody goes from one version to another by deltas."""

File = tuple[Kind, int]


class AnchorPolicy(Record, frozen=True):
    """When a whole version (an anchor) is written beside its delta."""

    every: int = 32
    """Number of deltas after which an anchor is written at the latest."""
    chain_share: float = 1.0
    """An anchor is written when the deltas since the last have grown to this share of its bytes."""
    kept_deltas: int = 8
    """How many of the newest deltas are kept for instances that lag, though no chain needs them."""

    def __post_init__(self) -> None:
        if self.every < 1 or self.chain_share <= 0 or self.kept_deltas < 1:
            raise ConfigError("anchors need a positive number of deltas between them")

    def is_due(self, anchor_bytes: int, delta_bytes: Sequence[int]) -> bool:
        """Whether an anchor is due after a chain of this anchor and these deltas."""
        return len(delta_bytes) >= self.every or sum(delta_bytes) > self.chain_share * anchor_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Inventory:
    """The anchors and deltas a store has, by version."""

    anchors: Set[int]
    deltas: Set[int]
    retired: Set[int]

    @property
    def versions(self) -> tuple[int, ...]:
        """Versions that can be fetched, oldest first."""
        return tuple(sorted((self.anchors | self.deltas) - self.retired))

    @property
    def newest(self) -> int | None:
        """The newest version, which is never retired."""
        return max(self.versions, default=None)

    def anchor_of(self, version: int) -> int | None:
        """The anchor that the chain of a version begins with."""
        return max((anchor for anchor in self.anchors if anchor <= version), default=None)

    def chain(self, version: int) -> list[File]:
        """The files of a version in the order they are read; some may be missing."""
        anchor = self.anchor_of(version)
        first = version if anchor is None else anchor
        return [("anchor", first), *(("delta", each) for each in range(first + 1, version + 1))]

    def spans(self, base: int, version: int) -> bool:
        """Whether every delta between two versions is there; an anchor makes them needless in time."""
        return all(each in self.deltas for each in range(base + 1, version + 1))

    def needless(self, kept_deltas: int) -> list[File]:
        """Files that nobody needs any more, newest first: what is left is whole chains and some deltas."""
        needed = set(self._needed(kept_deltas))
        files: set[File] = {("anchor", each) for each in self.anchors}
        files |= {("delta", each) for each in self.deltas}
        return sorted(files - needed, key=lambda file: -file[1])

    def _needed(self, kept_deltas: int) -> Iterator[File]:
        versions = self.versions
        for version in versions:
            yield from self.chain(version)
        # An instance of an older version adopts a newer one by these, though anchors may stand between them;
        # but not of one that was kept when all around it were retired, as it is by who plays a role.
        if versions:
            first = versions[-1] - kept_deltas + 1
            for version in reversed(versions):
                if first - version > _FAR:
                    break
                first = min(first, version)
            yield from (("delta", each) for each in range(first, versions[-1] + 1))
