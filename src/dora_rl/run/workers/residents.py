"""Versions from the store into an engine: as a change of one that is there, else whole.

A change is read and decoded beside the engine, which goes on meanwhile and stands still only while its
weights are written.
"""

import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from dora_rl.model.delta import Delta
from dora_rl.run.workers.tracked import TrackedEngine
from dora_rl.weights.errors import MissingFile
from dora_rl.weights.protocol import Resident, VersionSource
from dora_rl.weights.store import Store


@dataclass(frozen=True, slots=True, kw_only=True)
class Loading:
    """A version on its way."""

    version: int
    drop: tuple[int, ...]
    base: int | None
    """What it is made from; None where it comes whole, or is there."""
    delta: Future[Delta | None] | None
    began_at: float

    @property
    def is_read(self) -> bool:
        """Whether the engine would not have to wait for it."""
        return self.delta is None or self.delta.done()


class Residents:
    """The versions of one engine."""

    def __init__(self, engine: TrackedEngine, store: Path, device: str) -> None:
        self._engine = engine
        self._store: VersionSource = Store(store)
        self._device = device
        self._reader = ThreadPoolExecutor(1, thread_name_prefix="versions")

    def begin(self, version: int, drop: Sequence[int]) -> Loading:
        """Read a version that will be resident instead of those to drop; one at a time."""
        resident = self._engine.load().versions
        # The nearest, so that few changes lie between; one that goes is changed in place.
        base = max((old for old in resident if old < version), default=None)
        if version in resident:
            base = None
        delta = None
        if base is not None:
            tensors = {name: each.detach() for name, each in self._engine.decoder(base).named_parameters()}
            delta = self._reader.submit(self._delta, version, base, tensors)
        return Loading(version=version, drop=tuple(drop), base=base, delta=delta, began_at=time.monotonic())

    def finish(self, loading: Loading) -> float:
        """Make it resident, as soon as it is read; return the seconds since its beginning."""
        version, base, drop = loading.version, loading.base, loading.drop
        if version not in self._engine.load().versions:
            self._drop([old for old in drop if old != base])
            delta = loading.delta.result() if loading.delta is not None else None
            if base is not None and delta is not None:
                self._engine.adopt_version(version, base, delta, keeps_base=base not in drop)
            else:
                self._drop(drop)
                self._engine.load_version(version, self._store.fetch(version, self._device))
        self._drop(drop)
        return time.monotonic() - loading.began_at

    def _delta(self, version: int, base: int, tensors: dict[str, Tensor]) -> Delta | None:
        """None where the store put all of a version in place of the changes up to it."""
        try:
            return self._store.fetch_delta(version, Resident(version=base, tensors=tensors))
        except MissingFile:
            return None

    def _drop(self, versions: Sequence[int]) -> None:
        for version in versions:
            if version in self._engine.load().versions:
                self._engine.drop_version(version)
