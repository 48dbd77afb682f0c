"""Versions from the store into the native engine: as a change of one that is there, else whole.

A change is read and decoded beside the engine, which goes on meanwhile and stands still only while its
weights are written.
"""

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol

from dora_rl.engines.native.served_versions import Weights
from dora_rl.engines.protocol import EngineLoad, VersionLoad, VersionReader
from dora_rl.model.decoder import Decoder
from dora_rl.model.delta import Delta


class Adopts(Protocol):
    """The part of an engine that bringing in versions needs."""

    def load(self) -> EngineLoad:
        """The versions that are resident, among what the engine carries."""
        ...

    def decoder(self, version: int) -> Decoder:
        """The decoder of a resident version, to be read and not written."""
        ...

    def load_version(self, version: int, weights: Weights) -> None:
        """Make a version resident from a full set of weights."""
        ...

    def adopt_version(self, version: int, base: int, delta: Delta, *, keeps_base: bool = False) -> None:
        """Make a version resident as a change to another, which stays if `keeps_base`."""
        ...

    def drop_version(self, version: int) -> None:
        """Free a version; refused while a request uses it."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class NativeLoad:
    """A version that is being read beside the engine. Implements VersionLoad."""

    version: int
    drop: tuple[int, ...]
    base: int | None
    """The resident version this one is made from; None where it comes whole, or is resident already."""
    delta: Future[Delta | None] | None

    @property
    def is_read(self) -> bool:
        """Whether the version is read, so that the engine need not wait for it."""
        return self.delta is None or self.delta.done()


class Residents:
    """Brings versions from one version store into one engine."""

    def __init__(self, engine: Adopts, source: VersionReader, device: str) -> None:
        self._engine = engine
        self._source = source
        self._device = device
        self._reader = ThreadPoolExecutor(1, thread_name_prefix="versions")

    def begin(self, version: int, drop: Sequence[int]) -> NativeLoad:
        """Begin to read a version that becomes resident in place of those to drop; one at a time."""
        resident = self._engine.load().versions
        # The nearest, so that few changes lie between; one that goes is changed in place.
        base = max((old for old in resident if old < version), default=None)
        if version in resident:
            base = None
        delta = None
        if base is not None:
            tensors = {name: each.detach() for name, each in self._engine.decoder(base).named_parameters()}
            delta = self._reader.submit(self._source.fetch_delta, version, base, tensors)
        return NativeLoad(version=version, drop=tuple(drop), base=base, delta=delta)

    def finish(self, load: VersionLoad) -> None:
        """Make the version resident, waiting until it is read."""
        assert isinstance(load, NativeLoad), f"{load} was not begun by this engine"
        version, base, drop = load.version, load.base, load.drop
        if version not in self._engine.load().versions:
            # Before anything is dropped: what cannot be read leaves everything as it was.
            delta = load.delta.result() if load.delta is not None else None
            self._drop([old for old in drop if old != base])
            if base is not None and delta is not None:
                self._engine.adopt_version(version, base, delta, keeps_base=base not in drop)
            else:
                self._drop(drop)
                self._engine.load_version(version, self._source.fetch(version, self._device))
        self._drop(drop)

    def _drop(self, versions: Sequence[int]) -> None:
        for version in versions:
            if version in self._engine.load().versions:
                self._engine.drop_version(version)
