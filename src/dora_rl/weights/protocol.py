"""The seam between the trainer and the instances: versions go in on one side and come out on the other.

What is fetched may be shared with others: it is read, and copied by whoever wants to write. Engines copy.
"""

from typing import Protocol

from dora_rl.model.delta import Delta
from dora_rl.weights.strips import Tensors


class VersionStore(Protocol):
    """A store of versions, which are published in order and final. Engines see it as a VersionReader."""

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

    def fetch(self, version: int, device: str | None = None) -> Tensors:
        """All tensors of a version, on a device, or where the store has them."""
        ...

    def fetch_delta(self, version: int, base: int, tensors: Tensors) -> Delta:
        """The delta that turns the tensors of version `base` into a newer version, on their device."""
        ...
