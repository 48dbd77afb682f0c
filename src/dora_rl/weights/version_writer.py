"""Versions into files: tensors as they are for an anchor, coded steps for a delta."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from torch import Tensor

from dora_rl.weights.atomic_files import Files
from dora_rl.weights.bits import as_bytes
from dora_rl.weights.container import (
    MAGIC,
    DtypeName,
    Kind,
    Part,
    TensorEntry,
    VersionHeader,
    end_of_file,
    identity_of,
)
from dora_rl.weights.difference import Coded
from dora_rl.weights.packed_sections import Data, Strategy, as_it_is, pack_all
from dora_rl.weights.strips import Tensors


@dataclass(frozen=True, slots=True, kw_only=True)
class Base:
    """The version that a delta is made against."""

    version: int
    identity: str


def write_anchor(
    files: Files, path: Path, version: int, tensors: Tensors, identity: str | None = None
) -> VersionHeader:
    """Write all of a version, tensor by tensor; `identity` where the version has one already."""
    headers: list[VersionHeader] = []

    def chunks() -> Iterator[Data]:
        yield MAGIC
        parts = []
        for tensor in tensors.values():
            section, stored = as_it_is(_host_bytes(tensor))
            parts.append(Part(sections=(section,)))
            yield stored
        headers.append(_header("anchor", version, None, tensors, parts, identity))
        yield end_of_file(headers[0])

    files.write(path, chunks())
    return headers[0]


def write_delta(
    files: Files, path: Path, version: int, tensors: Tensors, coded: Sequence[Coded], base: Base
) -> VersionHeader:
    """Write what changed from the base, strip by strip."""
    packed = iter(pack_all([data for each in coded for data in _sections(each)]))
    parts, payload = [], list[Data]()
    for each in coded:
        mine = [next(packed) for _ in _sections(each)]
        payload += [stored for _, stored in mine]
        sections = tuple(section for section, _ in mine)
        parts.append(Part(sections=sections, count=each.count, base_sum=each.base_sum))
    header = _header("delta", version, base, tensors, parts, None)
    files.write(path, [MAGIC, *payload, end_of_file(header)])
    return header


def _sections(coded: Coded) -> list[tuple[Data, Strategy]]:
    """The sections of one strip. Positions have no redundancy left; high bytes of steps are mostly zero."""
    if not coded.count:
        return []
    low, *high = (_host_bytes(plane) for plane in coded.planes)
    return [
        (_host_bytes(coded.positions), "none"),
        (low, "huffman"),
        *((plane, "runs") for plane in high),
    ]


def _header(
    kind: Kind,
    version: int,
    base: Base | None,
    tensors: Tensors,
    parts: Sequence[Part],
    identity: str | None,
) -> VersionHeader:
    base_identity = base.identity if base else None
    entries = tuple(_entry(name, tensor) for name, tensor in tensors.items())
    return VersionHeader(
        kind=kind,
        version=version,
        identity=identity or identity_of(version, base_identity, entries, tuple(parts)),
        tensors=entries,
        parts=tuple(parts),
        base=base.version if base else None,
        base_identity=base_identity,
    )


def _entry(name: str, tensor: Tensor) -> TensorEntry:
    dtype = cast("DtypeName", str(tensor.dtype).removeprefix("torch."))
    return TensorEntry(name=name, dtype=dtype, shape=tuple(tensor.shape))


def _host_bytes(tensor: Tensor) -> memoryview:
    return as_bytes(tensor).cpu().numpy().data
