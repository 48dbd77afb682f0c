"""The file format: sections, then a header that describes them, then how to find and check the header.

    8 bytes    magic
    ...        the sections, one after the other in the header's order
    ...        the header: JSON
    16 bytes   blake2b of the header
    8 bytes    the header's length, little-endian
    8 bytes    magic

The header comes last so that a file is written in one pass. An anchor has one part a tensor, and in it one
section: its bytes. A delta has one part a strip (see `strips`) and in it, if something changed, a section of
positions and one for each byte plane, lowest first (see `positions` and `difference`). Everything a header
claims is held against the file's size and against itself before anything is allocated, and reading runs no
code.
"""

from hashlib import blake2b
from math import prod
from pathlib import Path
from typing import BinaryIO, Literal

import msgspec

from dora_rl.core.record import Record
from dora_rl.weights.bits import DTYPES
from dora_rl.weights.errors import Damaged, WeightsError
from dora_rl.weights.packed_sections import PackedSection
from dora_rl.weights.positions import PositionCode
from dora_rl.weights.strips import Strip, strips_of

MAGIC = b"DORAWGT2"
_DIGEST_BYTES = 16
_TRAILER_BYTES = _DIGEST_BYTES + 8 + len(MAGIC)
_HEADER_LIMIT_BYTES = 256 << 20

Kind = Literal["anchor", "delta"]
DtypeName = Literal["bfloat16", "float16", "float32"]


class TensorEntry(Record, frozen=True):
    """The name, dtype and shape of one tensor of a version."""

    name: str
    dtype: DtypeName
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        return prod(self.shape)


class Part(Record, frozen=True):
    """What a file stores of one strip."""

    sections: tuple[PackedSection, ...]
    count: int = 0
    """Number of values that changed."""
    base_sum: int = 0
    """Sum over the base's bit patterns at the changed places."""


class VersionHeader(Record, frozen=True):
    """The header of a version's file: what the file holds."""

    kind: Kind
    version: int
    identity: str
    """Digest of the version and of the whole lineage it was made from."""
    tensors: tuple[TensorEntry, ...]
    parts: tuple[Part, ...]
    base: int | None = None
    base_identity: str | None = None

    @property
    def payload_bytes(self) -> int:
        return sum(section.stored_bytes for part in self.parts for section in part.sections)

    @property
    def strips(self) -> list[Strip]:
        """The strips that the file's parts are of."""
        sizes = [(entry.name, entry.size, DTYPES[entry.dtype]) for entry in self.tensors]
        if self.kind == "delta":
            return strips_of(sizes)
        return [strip for each in sizes for strip in strips_of([each])]


def identity_of(
    version: int, base_identity: str | None, tensors: tuple[TensorEntry, ...], parts: tuple[Part, ...]
) -> str:
    """A digest of the contents of a version and of all it was made from."""
    return _digest(msgspec.json.encode((version, base_identity, tensors, parts))).hex()


def end_of_file(header: VersionHeader) -> bytes:
    """The bytes that follow the sections: header, digest, length, magic."""
    encoded = msgspec.json.encode(header)
    return encoded + _digest(encoded) + len(encoded).to_bytes(8, "little") + MAGIC


def read_header(file: BinaryIO, path: Path) -> VersionHeader:
    """The header, held against itself and the file; the file is left where its first section begins."""
    num_bytes = file.seek(0, 2)
    encoded = _read_encoded(file, path, num_bytes)
    try:
        header = msgspec.json.decode(encoded, type=VersionHeader)
    except msgspec.DecodeError as error:
        raise Damaged(path, f"its header cannot be read: {error}") from error
    if len(MAGIC) + header.payload_bytes + len(encoded) + _TRAILER_BYTES != num_bytes:
        raise Damaged(path, f"its header describes another length than its {num_bytes} bytes")
    if problem := _problem(header):
        raise Damaged(path, problem)
    file.seek(len(MAGIC))
    return header


def _read_encoded(file: BinaryIO, path: Path, num_bytes: int) -> bytes:
    if num_bytes < len(MAGIC) + _TRAILER_BYTES:
        raise Damaged(path, f"{num_bytes} bytes are no weight file")
    file.seek(0)
    begin = file.read(len(MAGIC))
    file.seek(num_bytes - _TRAILER_BYTES)
    trailer = file.read(_TRAILER_BYTES)
    digest, length, end = trailer[:_DIGEST_BYTES], trailer[_DIGEST_BYTES:-8], trailer[-8:]
    if begin == end and begin[:-1] == MAGIC[:-1] and begin != MAGIC:
        raise WeightsError(
            f"{path} has the format {begin.decode(errors='replace')}, and this is {MAGIC.decode()}",
            hint="use the version of dora-rl that wrote it",
        )
    if begin != MAGIC or end != MAGIC:
        raise Damaged(path, "it does not begin and end as a weight file: it is another file, or truncated")
    header_bytes = int.from_bytes(length, "little")
    if header_bytes > min(_HEADER_LIMIT_BYTES, num_bytes - len(MAGIC) - _TRAILER_BYTES):
        raise Damaged(path, f"a header of {header_bytes} bytes does not fit into it")
    file.seek(num_bytes - _TRAILER_BYTES - header_bytes)
    encoded = file.read(header_bytes)
    if _digest(encoded) != digest:
        raise Damaged(path, "the checksum of its header does not match")
    return encoded


def _problem(header: VersionHeader) -> str | None:
    """What is wrong with a header that was read whole, or None."""
    if (header.kind == "delta") != (header.base is not None and header.base_identity is not None):
        return "a delta has a base, an anchor has none"
    if len({entry.name for entry in header.tensors}) != len(header.tensors):
        return "a tensor occurs twice in it"
    if wrong := next((entry for entry in header.tensors if min(entry.shape, default=0) < 0), None):
        return f"tensor '{wrong.name}' of shape {list(wrong.shape)}"
    strips = header.strips
    if len(header.parts) != len(strips):
        return f"{len(header.parts)} parts where {len(strips)} belong"
    for strip, part in zip(strips, header.parts, strict=True):
        if problem := _part_problem(strip, part, header.kind):
            return f"{strip.label}: {problem}"
    return None


def _part_problem(strip: Strip, part: Part, kind: Kind) -> str | None:
    if not 0 <= part.count <= strip.size:
        return f"{part.count} changed values of {strip.size}"
    if not -(2**63) <= part.base_sum < 2**63:
        return f"a sum of {part.base_sum} over the base"
    expected = _section_bytes(strip, part.count, kind)
    if len(expected) != len(part.sections):
        return f"{len(part.sections)} sections where {len(expected)} belong"
    problems = (each.problem(size) for each, size in zip(part.sections, expected, strict=True))
    return next(filter(None, problems), None)


def _section_bytes(strip: Strip, count: int, kind: Kind) -> list[int]:
    """The lengths in bytes that a header's sections must have."""
    if kind == "anchor":
        return [strip.size * strip.dtype.itemsize]
    if not count:
        return []
    return [PositionCode(size=strip.size, count=count).num_bytes, *[count] * strip.dtype.itemsize]


def _digest(data: bytes) -> bytes:
    return blake2b(data, digest_size=_DIGEST_BYTES).digest()
