"""Versions from the store into an engine: by a delta where the base is given up for it, else whole."""

import time
from collections.abc import Sequence
from pathlib import Path

from dora_rl.runtime.workers.tracked import TrackedEngine
from dora_rl.weights.channel import Resident
from dora_rl.weights.store import Store


class Residents:
    """The versions of one engine."""

    def __init__(self, engine: TrackedEngine, store: Path, device: str) -> None:
        self._engine = engine
        self._store = Store(store)
        self._device = device

    def load(self, version: int, drop: Sequence[int]) -> float:
        """Make a version resident instead of those to drop; return the seconds it took."""
        began = time.monotonic()
        resident = self._engine.load().versions
        base = max((old for old in drop if old in resident and old < version), default=None)
        if version in resident:
            self._drop(drop)
        elif base is None:
            self._drop(drop)
            self._engine.load_version(version, self._store.fetch(version, self._device))
        else:
            self._drop([old for old in drop if old != base])
            tensors = {
                name: tensor.detach() for name, tensor in self._engine.decoder(base).named_parameters()
            }
            delta = self._store.fetch_delta(version, Resident(version=base, tensors=tensors))
            self._engine.adopt_version(version, base, delta)
            self._drop([base])
        return time.monotonic() - began

    def _drop(self, versions: Sequence[int]) -> None:
        for version in versions:
            if version in self._engine.load().versions:
                self._engine.drop_version(version)
