"""Resident weight sets, one Decoder a version.

Memory is reserved before anything is allocated, and a change is checked in full before the first value is
written, so a failed load or delta leaves everything as it was.
"""

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path

from msgspec.structs import replace
from torch import Tensor

from dora_rl.core.errors import DoraError
from dora_rl.engines.config import EngineConfig
from dora_rl.engines.errors import VersionError
from dora_rl.engines.memory_ledger import MemoryLedger
from dora_rl.engines.native.backend import Backend, Device, Model, Served
from dora_rl.engines.native.deltas import changed, check_delta, inverse
from dora_rl.engines.native.engine_memory import serving_dtype
from dora_rl.engines.native.scheduling.scheduler import Scheduler
from dora_rl.model.delta import Delta

Weights = Path | Mapping[str, Tensor]
"""Weights of a version: a Hugging Face directory, or every parameter under the Decoder's own names."""


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


class ServedVersions(Mapping[int, Served]):
    """The resident versions of an engine, and the memory reserved for them."""

    def __init__(
        self,
        model: Model,
        config: EngineConfig,
        ledger: MemoryLedger,
        *,
        device: Device,
        backend: Backend,
        scheduler: Scheduler,
    ) -> None:
        self._config = model
        self._max_versions = config.max_versions
        self._dtype = serving_dtype(config)
        self._ledger = ledger
        self._version_bytes = backend.version_bytes(model, config)
        self._backend = backend
        self._device = device
        self._scheduler = scheduler
        self._decoders: dict[int, Served] = {}

    def __getitem__(self, version: int) -> Served:
        return self._decoders[version]

    def __iter__(self) -> Iterator[int]:
        return iter(sorted(self._decoders))

    def __len__(self) -> int:
        return len(self._decoders)

    def load(self, version: int, weights: Weights) -> None:
        """Make a version resident from a full set of weights."""
        self._admit(
            version,
            lambda: (
                self._from_directory(weights) if isinstance(weights, Path) else self._from_tensors(weights)
            ),
        )

    def adopt(self, version: int, base: int, delta: Delta, *, keeps_base: bool) -> None:
        """Make a version resident as a change to another, in place if nothing uses that one any more."""
        self._check_known(base)
        decoder = self._decoders[base]
        check_delta(delta, dict(decoder.named_parameters()))
        if keeps_base or self._scheduler.uses_version(base):
            self._admit(version, lambda: changed(self._device.copied(decoder), delta))
            return

        self._check_new(version)
        undone = inverse(decoder, delta)
        self._device.forget(base)
        try:
            self._device.prepare(version, changed(decoder, delta))
        except (DoraError, RuntimeError) as error:
            # The device cannot serve what came out.
            self._device.prepare(base, changed(decoder, undone))
            raise VersionError(f"version {version} cannot be served: {error}") from error
        self._ledger.rename("device", _name(base), _name(version))
        self._decoders[version] = self._decoders.pop(base)
        self._scheduler.residency.drop_version(base)

    def drop(self, version: int) -> None:
        """Free a version, its memory and the prompts computed with it; refused while a request uses it."""
        if self._scheduler.uses_version(version):
            raise VersionError(f"version {version} is in use", hint="wait for its requests, or move them")
        self._check_known(version)
        del self._decoders[version]
        self._device.forget(version)
        self._scheduler.residency.drop_version(version)
        self._ledger.release("device", _name(version))

    def _admit(self, version: int, make: Callable[[], Served]) -> None:
        """Reserve, make and prepare a version, or leave everything as it was."""
        self._reserve(version)
        try:
            decoder = make().requires_grad_(False)
            self._device.prepare(version, decoder)
        except (DoraError, RuntimeError) as error:
            # RuntimeError is how torch reports missing, additional and misshapen tensors.
            self._ledger.release("device", _name(version))
            raise VersionError(f"version {version} cannot be loaded: {error}") from error
        self._decoders[version] = decoder

    def _reserve(self, version: int) -> None:
        self._check_new(version)
        if len(self) >= self._max_versions:
            raise VersionError(
                f"{len(self)} versions are resident, the most there may be", hint="drop one that nothing uses"
            )
        self._ledger.reserve("device", _name(version), self._version_bytes)

    def _check_new(self, version: int) -> None:
        if version in self._decoders:
            raise VersionError(f"version {version} is resident already")

    def _check_known(self, version: int) -> None:
        if version not in self._decoders:
            raise VersionError(f"version {version} is not resident; {list(self)} are")

    def _from_directory(self, directory: Path) -> Served:
        decoder = self._backend.load(directory, self._backend.torch_device, self._dtype)
        if _shape(decoder.config) != _shape(self._config):
            raise VersionError(f"{directory} holds another model than this engine serves")
        return decoder

    def _from_tensors(self, tensors: Mapping[str, Tensor]) -> Served:
        return self._backend.make(self._config, tensors, self._backend.torch_device, self._dtype)


def _name(version: int) -> str:
    return f"version {version}"


def _shape(model: Model) -> Model:
    """What all versions share of a model: neither storage dtype nor special tokens, nor where it is."""
    aside = {
        "dtype": "float32",
        "initializer_range": 0.0,
        "bos_token_id": None,
        "eos_token_ids": (),
        "pad_token_id": None,
        "directory": "",
    }
    return replace(model, **{key: aside[key] for key in aside if key in model.__struct_fields__})
