"""The files of a store: their names, which there are, and what is in them, checked."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import torch
from torch import Tensor

from dora_rl.weights.bits import DTYPES, PATTERN_OF, as_bytes
from dora_rl.weights.chain import Inventory
from dora_rl.weights.container import Header, Kind, TensorEntry, read_header
from dora_rl.weights.difference import Coded, Steps, decoded
from dora_rl.weights.errors import Damaged, MissingFile
from dora_rl.weights.packed import Section, unpack
from dora_rl.weights.positions import are_ascending

RETIRED = "retired"
_NAME = re.compile(r"v(\d{8,})\.(anchor|delta|retired)")


class Shelf:
    """Read-only, and without memory: another process may be writing."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def path(self, kind: Kind, version: int) -> Path:
        """Where a file is."""
        return self.directory / f"v{version:08}.{kind}"

    def marker(self, version: int) -> Path:
        """The empty file that says that a version is retired, while others need its files."""
        return self.directory / f"v{version:08}.{RETIRED}"

    def inventory(self) -> Inventory:
        """What there is."""
        found: dict[str, set[int]] = {"anchor": set(), "delta": set(), RETIRED: set()}
        for path in self.directory.iterdir() if self.directory.exists() else ():
            if match := _NAME.fullmatch(path.name):
                found[match[2]].add(int(match[1]))
        return Inventory(anchors=found["anchor"], deltas=found["delta"], retired=found[RETIRED])

    def header(self, kind: Kind, version: int) -> Header:
        """What a file says it holds."""
        with self._open(kind, version) as file:
            return self._header(file, kind, version)

    def identity(self, version: int) -> str:
        """Of a version that is here."""
        has_delta = version in self.inventory().deltas
        return self.header("delta" if has_delta else "anchor", version).identity

    def read_anchor(self, version: int) -> tuple[Header, dict[str, Tensor]]:
        """All tensors of an anchor, in host memory."""
        path = self.path("anchor", version)
        with self._open("anchor", version) as file:
            header = self._header(file, "anchor", version)
            return header, {entry.name: _read_tensor(file, entry, path) for entry in header.tensors}

    def read_delta(self, version: int) -> tuple[Header, dict[str, Coded]]:
        """What a delta changes, in host memory, still coded."""
        path = self.path("delta", version)
        with self._open("delta", version) as file:
            header = self._header(file, "delta", version)
            return header, dict(_read_coded(file, header, path))

    def decode_delta(
        self, header: Header, coded: dict[str, Coded], device: torch.device | str
    ) -> dict[str, Steps]:
        """The steps of each tensor, on a device: one transfer, then decoded there, one look at them all."""
        if not coded:
            return {}
        entries = {entry.name: entry for entry in header.tensors}
        path, steps = self.path("delta", header.version), dict[str, Steps]()
        base_sums = torch.tensor([each.base_sum for each in coded.values()]).to(device)
        for (name, each), base_sum in zip(_moved(coded, device).items(), base_sums, strict=True):
            dtype = PATTERN_OF[DTYPES[entries[name].dtype]]
            try:
                steps[name] = decoded(each, entries[name].size, dtype, base_sum)
            except ValueError as error:
                raise Damaged(path, f"tensor '{name}': {error}") from error
        are_sound = [are_ascending(each.indices_N, entries[name].size) for name, each in steps.items()]
        for name, is_sound in zip(steps, torch.stack(are_sound).tolist(), strict=True):
            if not is_sound:
                raise Damaged(path, f"tensor '{name}': positions that are not ascending")
        return steps

    def _open(self, kind: Kind, version: int) -> BinaryIO:
        try:
            return self.path(kind, version).open("rb")
        except FileNotFoundError as error:
            raise MissingFile(f"{self.path(kind, version)} is missing") from error

    def _header(self, file: BinaryIO, kind: Kind, version: int) -> Header:
        path = self.path(kind, version)
        header = read_header(file, path)
        if (header.kind, header.version) != (kind, version):
            raise Damaged(path, f"it holds the {header.kind} of version {header.version}")
        return header


def _read_tensor(file: BinaryIO, entry: TensorEntry, path: Path) -> Tensor:
    """Straight into the tensor's memory."""
    (section,) = entry.sections
    tensor = torch.empty(entry.shape, dtype=DTYPES[entry.dtype])
    view = as_bytes(tensor).numpy().data
    if tensor.numel():
        file.readinto(view)  # type: ignore[attr-defined]
    _unpacked(section, view, entry, path)
    return tensor


def _read_coded(file: BinaryIO, header: Header, path: Path) -> Iterator[tuple[str, Coded]]:
    for entry in header.tensors:
        if not entry.count:
            continue
        parts = [
            _unpacked(section, memoryview(file.read(section.stored_bytes)), entry, path)
            for section in entry.sections
        ]
        positions, *planes = (_as_tensor(part) for part in parts)
        yield (
            entry.name,
            Coded(
                count=entry.count, positions=positions, planes=torch.stack(planes), base_sum=entry.base_sum
            ),
        )


def _unpacked(section: Section, stored: memoryview, entry: TensorEntry, path: Path) -> memoryview:
    try:
        return memoryview(unpack(section, stored))
    except ValueError as error:
        raise Damaged(path, f"tensor '{entry.name}': {error}") from error


def _as_tensor(data: memoryview) -> Tensor:
    # A tensor over no bytes at all is refused by frombuffer.
    return (
        torch.frombuffer(bytearray(data), dtype=torch.uint8)
        if len(data)
        else torch.empty(0, dtype=torch.uint8)
    )


def _moved(coded: dict[str, Coded], device: torch.device | str) -> dict[str, Coded]:
    """The same on a device, all in one transfer."""
    if not coded or torch.device(device).type == "cpu":
        return coded
    parts = [part for each in coded.values() for part in (each.positions, each.planes.view(-1))]
    arrived = torch.cat(parts).to(device).split([len(part) for part in parts])
    return {
        name: Coded(
            count=each.count,
            positions=arrived[2 * place],
            planes=arrived[2 * place + 1].view(each.planes.shape),
            base_sum=each.base_sum,
        )
        for place, (name, each) in enumerate(coded.items())
    }
