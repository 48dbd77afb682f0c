"""Sections: runs of bytes, compressed where that pays, each with its checksum and its size.

Nothing is allocated before its size is known to be possible: deflate cannot shrink more than 1032 times, so
a section that claims more is refused unread.
"""

import zlib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from os import cpu_count
from typing import Literal

from dora_rl.core.record import Record

Coding = Literal["raw", "deflate"]
Strategy = Literal["none", "huffman", "runs"]
"""How to compress a section: not at all, for skewed bytes without repetition, or for long runs."""

_DEFLATE_RATIO = 1032
"""The largest ratio by which deflate can shrink anything."""
_ENOUGH = 0.95
"""Share of the bytes that compression may leave at most to be worth undoing."""
_PIECE_BYTES = 1 << 18
_RAW_DEFLATE = -zlib.MAX_WBITS
_STRATEGY = {"huffman": zlib.Z_HUFFMAN_ONLY, "runs": zlib.Z_RLE}

Data = bytes | memoryview


class PackedSection(Record, frozen=True):
    """What a file's header says about one of its compressed sections."""

    stored_bytes: int
    raw_bytes: int
    crc32: int
    """Checksum of the stored bytes."""
    coding: Coding = "raw"

    def problem(self, raw_bytes: int) -> str | None:
        """Why this cannot be a section of so many bytes, or None if it can."""
        if self.raw_bytes != raw_bytes or self.stored_bytes < 0:
            return f"a section of {self.raw_bytes} bytes where {raw_bytes} belong"
        if self.coding == "raw" and self.stored_bytes != self.raw_bytes:
            return f"{self.stored_bytes} bytes stored for {self.raw_bytes}"
        if self.raw_bytes > _DEFLATE_RATIO * (self.stored_bytes + 1):
            return f"{self.raw_bytes} bytes cannot come out of {self.stored_bytes}"
        return None


def as_it_is(data: Data) -> tuple[PackedSection, Data]:
    """A section of bytes that are not compressed."""
    return PackedSection(stored_bytes=len(data), raw_bytes=len(data), crc32=zlib.crc32(data)), data


def pack_all(parts: Sequence[tuple[Data, Strategy]]) -> list[tuple[PackedSection, Data]]:
    """Sections, and the bytes to store for each.

    Pieces are compressed on as many threads as there are processors: zlib does not hold the interpreter, and
    the longest section alone would take longer than the others together.
    """
    with ThreadPoolExecutor(min(16, cpu_count() or 1)) as threads:
        deflated = [
            [threads.submit(_deflated, piece, strategy, is_last) for piece, is_last in _pieces(data)]
            if strategy != "none"
            else None
            for data, strategy in parts
        ]
        return [
            as_it_is(data) if pieces is None else _smaller(data, b"".join(each.result() for each in pieces))
            for (data, _), pieces in zip(parts, deflated, strict=True)
        ]


def _pieces(data: Data) -> Iterator[tuple[Data, bool]]:
    """The pieces of a section that are compressed apart, each with whether it is the last."""
    for first in range(0, len(data), _PIECE_BYTES):
        yield data[first : first + _PIECE_BYTES], first + _PIECE_BYTES >= len(data)


def _deflated(piece: Data, strategy: Strategy, is_last: bool) -> bytes:
    """A part of a deflate stream: end to end, the parts of all pieces are one stream."""
    deflate = zlib.compressobj(1, zlib.DEFLATED, _RAW_DEFLATE, 9, _STRATEGY[strategy])
    return deflate.compress(piece) + deflate.flush(zlib.Z_FINISH if is_last else zlib.Z_FULL_FLUSH)


def _smaller(data: Data, deflated: bytes) -> tuple[PackedSection, Data]:
    if len(deflated) >= _ENOUGH * len(data):
        return as_it_is(data)
    section = PackedSection(
        stored_bytes=len(deflated), raw_bytes=len(data), crc32=zlib.crc32(deflated), coding="deflate"
    )
    return section, deflated


def unpack(section: PackedSection, stored: Data) -> Data:
    """The bytes of a section; ValueError if they are not those that were stored."""
    if len(stored) != section.stored_bytes or zlib.crc32(stored) != section.crc32:
        raise ValueError("its checksum does not match")
    if section.coding == "raw":
        return stored
    inflate = zlib.decompressobj(_RAW_DEFLATE)
    try:
        raw = inflate.decompress(stored, section.raw_bytes + 1)
    except zlib.error as error:
        raise ValueError(f"it cannot be inflated: {error}") from error
    if len(raw) != section.raw_bytes or not inflate.eof:
        raise ValueError(f"it does not inflate to {section.raw_bytes} bytes")
    return raw
