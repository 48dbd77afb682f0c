"""The files of a store: their names, which there are, and what is in them, checked."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

import torch
from torch import Tensor

from dora_rl.weights.bits import DTYPES, PATTERN_OF, as_bytes
from dora_rl.weights.chain import Inventory
from dora_rl.weights.container import Kind, Part, TensorEntry, VersionHeader, read_header
from dora_rl.weights.difference import Coded, StripSteps, decoded
from dora_rl.weights.errors import LOST, Damaged, MissingFile
from dora_rl.weights.packed_sections import PackedSection, unpack
from dora_rl.weights.positions import are_ascending
from dora_rl.weights.strips import Strip

RETIRED = "retired"
_NAME = re.compile(r"v(\d{8,})\.(anchor|delta|retired)")


class Shelf:
    """The files of a store as a reader sees them; nothing is remembered, as another process may write."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def path(self, kind: Kind, version: int) -> Path:
        """The path of a version's file."""
        return self.directory / f"v{version:08}.{kind}"

    def marker(self, version: int) -> Path:
        """The empty file that says that a version is retired, while others need its files."""
        return self.directory / f"v{version:08}.{RETIRED}"

    def inventory(self) -> Inventory:
        """The anchors, deltas and retired versions that are there now."""
        found: dict[str, set[int]] = {"anchor": set(), "delta": set(), RETIRED: set()}
        for path in self.directory.iterdir() if self.directory.exists() else ():
            if match := _NAME.fullmatch(path.name):
                found[match[2]].add(int(match[1]))
        return Inventory(anchors=found["anchor"], deltas=found["delta"], retired=found[RETIRED])

    def header(self, kind: Kind, version: int) -> VersionHeader:
        """The header of a version's file."""
        with self._open(kind, version) as file:
            return self._header(file, kind, version)

    def identity(self, version: int) -> str:
        """The identity of a version that is here."""
        has_delta = version in self.inventory().deltas
        return self.header("delta" if has_delta else "anchor", version).identity

    def read_anchor(self, version: int) -> tuple[VersionHeader, dict[str, Tensor]]:
        """All tensors of an anchor, in host memory."""
        path = self.path("anchor", version)
        with self._open("anchor", version) as file:
            header = self._header(file, "anchor", version)
            parts = zip(header.tensors, header.parts, strict=True)
            return header, {entry.name: _read_tensor(file, entry, part, path) for entry, part in parts}

    def read_delta(self, version: int) -> tuple[VersionHeader, list[Coded]]:
        """What a delta changes, strip by strip, in host memory and still coded."""
        path = self.path("delta", version)
        with self._open("delta", version) as file:
            header = self._header(file, "delta", version)
            strips = zip(header.strips, header.parts, strict=True)
            return header, [_read_coded(file, strip, part, path) for strip, part in strips]

    def decode_delta(
        self, header: VersionHeader, coded: Sequence[Coded], device: torch.device | str
    ) -> list[StripSteps]:
        """The steps of each strip, on a device: one transfer, then decoded there, one look at them all."""
        path, strips, steps = self.path("delta", header.version), header.strips, list[StripSteps]()
        base_sums = torch.tensor([each.base_sum for each in coded]).to(device)
        for strip, each, base_sum in zip(strips, _moved(coded, device), base_sums, strict=True):
            try:
                steps.append(decoded(each, strip.size, PATTERN_OF[strip.dtype], base_sum))
            except ValueError as error:
                raise Damaged(path, f"{strip.label}: {error}") from error
        changed = [pair for pair in zip(strips, steps, strict=True) if len(pair[1].indices_N)]
        if changed:
            are_sound = [are_ascending(each.indices_N, strip.size) for strip, each in changed]
            for (strip, _), is_sound in zip(changed, torch.stack(are_sound).tolist(), strict=True):
                if not is_sound:
                    raise Damaged(path, f"{strip.label}: positions that are not ascending")
        return steps

    def _open(self, kind: Kind, version: int) -> BinaryIO:
        try:
            return self.path(kind, version).open("rb")
        except FileNotFoundError as error:
            raise MissingFile(f"{self.path(kind, version)} is missing", hint=LOST) from error

    def _header(self, file: BinaryIO, kind: Kind, version: int) -> VersionHeader:
        path = self.path(kind, version)
        header = read_header(file, path)
        if (header.kind, header.version) != (kind, version):
            raise Damaged(path, f"it holds the {header.kind} of version {header.version}")
        return header


def _read_tensor(file: BinaryIO, entry: TensorEntry, part: Part, path: Path) -> Tensor:
    """Read a tensor from a file straight into its memory."""
    (section,) = part.sections
    tensor = torch.empty(entry.shape, dtype=DTYPES[entry.dtype])
    view = as_bytes(tensor).numpy().data
    if tensor.numel():
        file.readinto(view)  # type: ignore[attr-defined]
    _unpacked(section, view, f"tensor '{entry.name}'", path)
    return tensor


def _read_coded(file: BinaryIO, strip: Strip, part: Part, path: Path) -> Coded:
    if not part.count:
        nothing = torch.empty(0, dtype=torch.uint8)
        return Coded(count=0, positions=nothing, planes=nothing.view(strip.dtype.itemsize, 0), base_sum=0)
    sections = [
        _unpacked(section, memoryview(file.read(section.stored_bytes)), strip.label, path)
        for section in part.sections
    ]
    positions, *planes = (_as_tensor(section) for section in sections)
    return Coded(count=part.count, positions=positions, planes=torch.stack(planes), base_sum=part.base_sum)


def _unpacked(section: PackedSection, stored: memoryview, label: str, path: Path) -> memoryview:
    try:
        return memoryview(unpack(section, stored))
    except ValueError as error:
        raise Damaged(path, f"{label}: {error}") from error


def _as_tensor(data: memoryview) -> Tensor:
    # A tensor over no bytes at all is refused by frombuffer.
    return (
        torch.frombuffer(bytearray(data), dtype=torch.uint8)
        if len(data)
        else torch.empty(0, dtype=torch.uint8)
    )


def _moved(coded: Sequence[Coded], device: torch.device | str) -> Sequence[Coded]:
    """The coded strips on a device, all in one transfer."""
    if torch.device(device).type == "cpu":
        return coded
    parts = [part for each in coded for part in (each.positions, each.planes.view(-1))]
    arrived = torch.cat(parts).to(device).split([len(part) for part in parts])
    return [
        Coded(
            count=each.count,
            positions=arrived[2 * place],
            planes=arrived[2 * place + 1].view(each.planes.shape),
            base_sum=each.base_sum,
        )
        for place, each in enumerate(coded)
    ]
