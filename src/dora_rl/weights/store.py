"""The store: every version of the window in files, each a small delta to the one before it.

Any number of processes fetch; one publishes. Publishing takes a lock for as long as the store is open, and
keeps a copy of the newest version on the device of the tensors it was given, to compare the next one with.
A version exists from the moment its first file has its name, and from then on is final.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

import torch
from torch import Tensor

from dora_rl.model.delta import Delta
from dora_rl.weights.atomic_files import Files, is_temporary
from dora_rl.weights.bits import DTYPES, patterns
from dora_rl.weights.chain import AnchorPolicy, Inventory
from dora_rl.weights.container import VersionHeader
from dora_rl.weights.difference import StripSteps, changes_between, changes_of, encode_all
from dora_rl.weights.errors import MissingFile, UnknownVersion, VersionConflict, WeightsError, WrongBase
from dora_rl.weights.rebuild import read_steps, rebuilt
from dora_rl.weights.shelf import Shelf
from dora_rl.weights.store_lock import Lock
from dora_rl.weights.strips import Strip, Tensors, strips_in
from dora_rl.weights.version_writer import Base, write_anchor, write_delta

_ATTEMPTS = 5
_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True)
class _Newest:
    """The version that the next one is compared with, its tensors strung together."""

    version: int
    strips: list[Strip]
    strung: list[Tensor]
    tensors: dict[str, Tensor]
    """The strung memory tensor by tensor, as views."""

    @classmethod
    def of(cls, version: int, tensors: Tensors) -> Self:
        """Copy a version; tensors that nobody else holds are freed as they are copied."""
        shapes = {name: tensor.shape for name, tensor in tensors.items()}
        strips, left = strips_in(tensors), dict(tensors)
        del tensors
        strung, views = list[Tensor](), dict[str, Tensor]()
        for strip in strips:
            strung.append(strip.strung(left))
            for name, part in strip.views(strung[-1]).items():
                views[name] = part.view(shapes[name])
                del left[name]
        return cls(version, strips, strung, views)


class Store:
    """A directory of versions; what is fetched belongs to the caller.

    Implements VersionStore, and for engines VersionReader.
    """

    def __init__(
        self, directory: Path, *, policy: AnchorPolicy | None = None, files: Files | None = None
    ) -> None:
        self._policy = policy or AnchorPolicy()
        self._files = files or Files()
        self._shelf = Shelf(directory)
        self._lock = Lock(directory, mode=self._files.mode)
        self._newest: _Newest | None = None

    @property
    def directory(self) -> Path:
        """The directory of the version files."""
        return self._shelf.directory

    @property
    def versions(self) -> tuple[int, ...]:
        """Versions that can be fetched, oldest first."""
        return self._shelf.inventory().versions

    def publish(self, version: int, tensors: Tensors) -> None:
        """Make a version durable. Again with the same tensors it finishes what a failure left undone."""
        self._own()
        # In one order in all files of a store, whatever order they are given in.
        tensors = {name: tensors[name].detach().contiguous() for name in sorted(tensors)}
        _check_kind(tensors)
        inventory = self._shelf.inventory()
        if version in inventory.versions:
            self._check_same(version, tensors)
            self._files.sync_directory(self._shelf.directory)
        elif inventory.newest is None:
            write_anchor(self._files, self._shelf.path("anchor", version), version, tensors)
            self._newest = _Newest.of(version, tensors)
        elif version == inventory.newest + 1:
            base = self._newest_on(_device_of(tensors))
            _check_alike(tensors, base.tensors)
            coded = encode_all(base.strips, base.strung, tensors)
            against = Base(version=base.version, identity=self._shelf.identity(base.version))
            # Until the write has succeeded or failed, what is newest is for the files to say.
            self._newest = None
            write_delta(self._files, self._shelf.path("delta", version), version, tensors, coded, against)
            kept = [patterns(base.tensors[name]) for name in tensors]
            torch._foreach_copy_(kept, [patterns(tensor) for tensor in tensors.values()])
            self._newest = replace(base, version=version)
        else:
            raise VersionConflict(f"version {version} cannot follow version {inventory.newest}")
        self._anchor_if_due(version, tensors)

    def fetch(self, version: int, device: str | None = None) -> Tensors:
        """All tensors of a version; in host memory unless a device is named."""

        def read(inventory: Inventory) -> Tensors:
            return rebuilt(self._shelf, inventory.chain(version), device or "cpu")

        return self._retried(version, read)

    def fetch_delta(self, version: int, base: int, tensors: Tensors) -> Delta:
        """The delta that turns the tensors of version `base` into a newer version, on their device."""

        def read(inventory: Inventory) -> Delta:
            if not inventory.spans(base, version):
                return changes_between(tensors, rebuilt(self._shelf, inventory.chain(version), "cpu"))
            if version <= base:
                raise WrongBase(f"version {version} is not newer than version {base}, which is resident")
            between: list[tuple[VersionHeader, list[StripSteps]]] = []
            for each in range(base + 1, version + 1):
                between.append(read_steps(self._shelf, each, tensors, between[-1][0] if between else None))
            (first, *_), steps = zip(*between, strict=True)
            try:
                return changes_of(first.strips, list(zip(*steps, strict=True)), tensors)
            except WrongBase as error:
                path = self._shelf.path("delta", first.version)
                raise WrongBase(f"{path}: {error.message}", hint="load the whole version instead") from error

        return self._retried(version, read)

    def retire(self, version: int) -> None:
        """Retire a version; its files are deleted when no other version's chain needs them."""
        self._own()
        inventory = self._shelf.inventory()
        if version == inventory.newest:
            raise VersionConflict(f"version {version} is the newest: the next one is made against it")
        if version in inventory.versions:
            self._files.write(self._shelf.marker(version), ())
        self._sweep()

    def close(self) -> None:
        """Release the lock, so that another process may publish."""
        self._newest = None
        self._lock.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # --- publishing -----------------------------------------------------------------------------

    def _own(self) -> None:
        """Take the publisher's lock, and clear away what a crash left; not where another leads by now."""
        self._files.check_leader()
        if self._lock.acquire():
            self._sweep()

    def _anchor_if_due(self, version: int, tensors: Tensors) -> None:
        chain = self._shelf.inventory().chain(version)
        anchor_bytes, *delta_bytes = (self._shelf.path(*file).stat().st_size for file in chain)
        if self._policy.is_due(anchor_bytes, delta_bytes):
            path, identity = self._shelf.path("anchor", version), self._shelf.identity(version)
            write_anchor(self._files, path, version, tensors, identity)

    def _newest_on(self, device: torch.device) -> _Newest:
        newest = self._shelf.inventory().newest
        assert newest is not None, "an empty store has no newest version"
        kept = self._newest
        if kept is None or kept.version != newest or _device_of(kept.tensors) != device:
            self._newest = kept = _Newest.of(newest, self.fetch(newest, str(device)))
        return kept

    def _check_same(self, version: int, tensors: Tensors) -> None:
        published = self.fetch(version, str(_device_of(tensors)))
        _check_alike(tensors, published)
        different = sum(int((patterns(tensors[name]) != patterns(published[name])).sum()) for name in tensors)
        if different:
            raise VersionConflict(
                f"version {version} is published already, with {different:,} other values",
                hint="a published version is final: go on from it",
            )

    def _sweep(self) -> None:
        """Remove what no version needs: files first, then the marks of versions that have none left."""
        directory = self._shelf.directory
        for path in filter(is_temporary, directory.iterdir()):
            self._files.remove(path)
        for file in self._shelf.inventory().needless(self._policy.kept_deltas):
            self._files.remove(self._shelf.path(*file))
        left = self._shelf.inventory()
        bare = left.retired - left.anchors - left.deltas
        if bare:
            # On the disk before the marks go, or a power cut could bring a version back.
            self._files.sync_directory(directory)
        for version in bare:
            self._files.remove(self._shelf.marker(version))

    # --- fetching -------------------------------------------------------------------------------

    def _retried(self, version: int, read: Callable[[Inventory], _Result]) -> _Result:
        """Read a version. While it is read, the publisher may put a newer anchor in place of its chain."""
        for attempt in range(_ATTEMPTS):
            inventory = self._shelf.inventory()
            if version not in inventory.versions:
                break
            try:
                return read(inventory)
            except MissingFile:
                if attempt == _ATTEMPTS - 1 or self._shelf.inventory() == inventory:
                    raise
        raise UnknownVersion(
            f"{self._shelf.directory} does not hold version {version}; it holds {list(self.versions)}"
        )


def _device_of(tensors: Tensors) -> torch.device:
    return next(iter(tensors.values())).device


def _check_kind(tensors: Tensors) -> None:
    if not tensors:
        raise WeightsError("a version without tensors")
    for name, tensor in tensors.items():
        if tensor.dtype not in DTYPES.values():
            raise WeightsError(f"'{name}' is of {tensor.dtype}; versions are of {', '.join(DTYPES)}")


def _check_alike(new: Tensors, old: Tensors) -> None:
    """Refuse a version of another model: all versions of a store have the same tensors."""
    if new.keys() != old.keys():
        names = ", ".join(sorted(new.keys() ^ old.keys()))
        raise VersionConflict(f"the versions of a store have the same tensors; {names} are not in both")
    for name, tensor in new.items():
        if (tensor.shape, tensor.dtype) != (old[name].shape, old[name].dtype):
            raise VersionConflict(f"'{name}' had another shape or dtype in earlier versions")
