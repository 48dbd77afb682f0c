"""Versions from the store into an engine: as a change of one that is there, else whole."""

import time
from collections.abc import Sequence
from pathlib import Path

from dora_rl.model.delta import Delta
from dora_rl.runtime.workers.tracked import TrackedEngine
from dora_rl.weights.channel import Resident
from dora_rl.weights.errors import MissingFile
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
        # The nearest, so that few changes lie between; one that goes is changed in place.
        base = max((old for old in resident if old < version), default=None)
        if version not in resident:
            self._drop([old for old in drop if old != base])
            if base is None or not self._adopt(version, base, keeps_base=base not in drop):
                self._drop(drop)
                self._engine.load_version(version, self._store.fetch(version, self._device))
        self._drop(drop)
        return time.monotonic() - began

    def _adopt(self, version: int, base: int, *, keeps_base: bool) -> bool:
        delta = self._delta(version, base)
        if delta is not None:
            self._engine.adopt_version(version, base, delta, keeps_base=keeps_base)
        return delta is not None

    def _delta(self, version: int, base: int) -> Delta | None:
        """None where the store put all of a version in place of the changes up to it."""
        parameters = self._engine.decoder(base).named_parameters()
        tensors = {name: parameter.detach() for name, parameter in parameters}
        try:
            return self._store.fetch_delta(version, Resident(version=base, tensors=tensors))
        except MissingFile:
            return None

    def _drop(self, versions: Sequence[int]) -> None:
        for version in versions:
            if version in self._engine.load().versions:
                self._engine.drop_version(version)
