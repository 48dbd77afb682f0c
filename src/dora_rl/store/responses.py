"""A response as bytes: in chunks while it grows, in one piece once it is complete. Knows no tables."""

from collections.abc import Sequence
from typing import NamedTuple

from msgspec import msgpack

_TOKEN_BYTES = 4
unpack_experts = msgpack.Decoder(tuple[bytes, ...]).decode
_encode = msgpack.Encoder().encode


class Chunk(NamedTuple):
    """Tokens of a trajectory that came together, fields in the order of the table's columns."""

    trajectory: int
    start: int
    version: int | None
    tokens: bytes
    logprobs: bytes
    cut_logprobs: bytes


class Joined(NamedTuple):
    """A whole response as bytes, fields in the order of the table's columns."""

    stretches: bytes
    tokens: bytes
    logprobs: bytes
    cut_logprobs: bytes


def join_chunks(chunks: Sequence[Chunk]) -> Joined:
    """Join chunks that follow one another into one response."""
    stretches = [
        (chunk.start, chunk.version)
        for before, chunk in zip([None, *chunks], chunks, strict=False)
        if before is None or before.version != chunk.version
    ]
    return Joined(
        stretches=_encode(stretches),
        tokens=b"".join(chunk.tokens for chunk in chunks),
        logprobs=b"".join(chunk.logprobs for chunk in chunks),
        cut_logprobs=b"".join(chunk.cut_logprobs for chunk in chunks),
    )


def cut_chunks(chunks: Sequence[Chunk], num_tokens: int) -> list[Chunk]:
    """The chunks cut to the first `num_tokens` tokens."""
    kept = []
    for chunk in chunks:
        num_bytes = _TOKEN_BYTES * max(0, num_tokens - chunk.start)
        if num_bytes:
            kept.append(
                chunk._replace(
                    tokens=chunk.tokens[:num_bytes],
                    logprobs=chunk.logprobs[:num_bytes],
                    cut_logprobs=chunk.cut_logprobs[:num_bytes],
                )
            )
    return kept
