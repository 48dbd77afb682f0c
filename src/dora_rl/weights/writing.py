"""Versions into files: tensors as they are for an anchor, coded steps for a delta."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from torch import Tensor

from dora_rl.weights.bits import as_bytes
from dora_rl.weights.container import (
    MAGIC,
    DtypeName,
    Header,
    Kind,
    TensorEntry,
    end_of_file,
    identity_of,
)
from dora_rl.weights.difference import Coded, Tensors
from dora_rl.weights.files import Files
from dora_rl.weights.packed import Data, Section, Strategy, pack, pack_all


@dataclass(frozen=True, slots=True, kw_only=True)
class Base:
    """What a delta is made against."""

    version: int
    identity: str


def write_anchor(
    files: Files, path: Path, version: int, tensors: Tensors, identity: str | None = None
) -> Header:
    """All of a version, tensor by tensor; `identity` where the version has one already."""
    headers: list[Header] = []

    def chunks() -> Iterator[Data]:
        yield MAGIC
        entries = []
        for name, tensor in tensors.items():
            section, stored = pack(_host_bytes(tensor), "none")
            entries.append(_entry(name, tensor, (section,)))
            yield stored
        headers.append(_header("anchor", version, None, tuple(entries), identity))
        yield end_of_file(headers[0])

    files.write(path, chunks())
    return headers[0]


def write_delta(
    files: Files, path: Path, version: int, tensors: Tensors, coded: Mapping[str, Coded], base: Base
) -> Header:
    """What changed, and nothing of what did not."""
    packed = iter(pack_all([part for name in tensors for part in _parts(coded[name])]))
    entries, payload = [], []
    for name, tensor in tensors.items():
        mine = [next(packed) for _ in _parts(coded[name])]
        payload += [stored for _, stored in mine]
        entries.append(_entry(name, tensor, tuple(section for section, _ in mine), coded[name]))
    header = _header("delta", version, base, tuple(entries), None)
    files.write(path, [MAGIC, *payload, end_of_file(header)])
    return header


def _parts(coded: Coded) -> list[tuple[Data, Strategy]]:
    """The sections of one tensor. Positions have no redundancy left; high bytes of steps are mostly zero."""
    if not coded.count:
        return []
    low, *high = (_host_bytes(plane) for plane in coded.planes)
    return [
        (_host_bytes(coded.positions), "none"),
        (low, "huffman"),
        *((plane, "runs") for plane in high),
    ]


def _header(
    kind: Kind, version: int, base: Base | None, entries: tuple[TensorEntry, ...], identity: str | None
) -> Header:
    base_identity = base.identity if base else None
    return Header(
        kind=kind,
        version=version,
        identity=identity or identity_of(version, base_identity, entries),
        tensors=entries,
        base=base.version if base else None,
        base_identity=base_identity,
    )


def _entry(
    name: str, tensor: Tensor, sections: tuple[Section, ...], coded: Coded | None = None
) -> TensorEntry:
    return TensorEntry(
        name=name,
        dtype=cast("DtypeName", str(tensor.dtype).removeprefix("torch.")),
        shape=tuple(tensor.shape),
        sections=sections,
        count=coded.count if coded else 0,
        base_sum=coded.base_sum if coded else 0,
    )


def _host_bytes(tensor: Tensor) -> memoryview:
    return as_bytes(tensor).cpu().numpy().data
