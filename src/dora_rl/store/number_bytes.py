"""Numbers as bytes: token ids are int32 and logprobs float32, little-endian, one after the other."""

import sys
from array import array
from collections.abc import Sequence
from typing import TypeVar

N = TypeVar("N", int, float)

_IS_FOREIGN = sys.byteorder == "big"


def pack_tokens(tokens: Sequence[int]) -> bytes:
    """Token ids as int32 bytes; OverflowError where an id does not fit."""
    return _to_bytes(array("i", tokens))


def unpack_tokens(packed: bytes) -> tuple[int, ...]:
    """Token ids from int32 bytes."""
    return tuple(_from_bytes(array("i"), packed))


def pack_logprobs(logprobs: Sequence[float]) -> bytes:
    """Logprobs as float32 bytes: engines compute no finer."""
    return _to_bytes(array("f", logprobs))


def unpack_logprobs(packed: bytes) -> tuple[float, ...]:
    """Logprobs from float32 bytes."""
    return tuple(_from_bytes(array("f"), packed))


def _to_bytes(numbers: "array[N]") -> bytes:
    if _IS_FOREIGN:
        numbers.byteswap()
    return numbers.tobytes()


def _from_bytes(numbers: "array[N]", packed: bytes) -> "array[N]":
    numbers.frombytes(packed)
    if _IS_FOREIGN:
        numbers.byteswap()
    return numbers
