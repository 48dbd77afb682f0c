"""The version store as an engine sees it. Reaches torch only once it is opened."""

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dora_rl.weights.protocol import VersionSource


class StoredVersions:
    """Versions of one run, read from the directory they are published in. Implements VersionReader."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def open(self) -> None:
        """Import what reads weights, which takes seconds: until a version is read it may be retired."""
        _ = self._store

    def fetch(self, version: int, device: str | None = None) -> Mapping[str, Any]:
        """Every tensor of a version, by name."""
        return self._store.fetch(version, device)

    def fetch_delta(self, version: int, base: int, tensors: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """The change from version `base` to `version`; None where the store holds only a whole version."""
        from dora_rl.weights.errors import MissingFile
        from dora_rl.weights.protocol import Resident

        try:
            return self._store.fetch_delta(version, Resident(version=base, tensors=tensors))
        except MissingFile:
            return None

    @cached_property
    def _store(self) -> "VersionSource":
        from dora_rl.weights.store import Store

        return Store(self.directory)
