"""The seam between the trainer and the instances: versions go in on one side and come out on the other.

What is fetched may be shared with others: it is read, and copied by whoever wants to write. Engines copy.
"""

from dataclasses import dataclass
from typing import Protocol

from dora_rl.model.delta import Delta
from dora_rl.weights.strips import Tensors


@dataclass(frozen=True, slots=True, kw_only=True)
class Resident:
    """A version that an instance holds; its tensors are read, never written."""

    version: int
    tensors: Tensors


class VersionSource(Protocol):
    """What an instance needs of a store of versions."""

    def fetch(self, version: int, device: str | None = None) -> Tensors:
        """All tensors of a version, on a device, or where the store has them."""
        ...

    def fetch_delta(self, version: int, base: Resident) -> Delta:
        """The delta from a base to a newer version, on the base's device: for an engine to adopt."""
        ...


class VersionStore(VersionSource, Protocol):
    """What a trainer needs of a store of versions: they are published in order, and final."""

    @property
    def versions(self) -> tuple[int, ...]:
        """Versions that can be fetched, oldest first."""
        ...

    def publish(self, version: int, tensors: Tensors) -> None:
        """Make a version available; when this returns, it can be fetched."""
        ...

    def retire(self, version: int) -> None:
        """Delete a version that is not the newest; nothing will fetch it any more."""
        ...
