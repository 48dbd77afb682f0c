"""Bit patterns of tensors: integer views, zigzag, byte planes, packed bits. On any device, without loops
over elements.

Bytes are little-endian, and bit `i` of packed bits is bit `i % 8` of byte `i // 8`.
"""

import torch
from torch import Tensor

PATTERN_OF = {torch.bfloat16: torch.int16, torch.float16: torch.int16, torch.float32: torch.int32}
"""The integer dtype whose bits stand for those of a float dtype."""
DTYPES = {str(dtype).removeprefix("torch."): dtype for dtype in PATTERN_OF}

_GATHER = 0x0102040810204080
"""Multiplier that gathers eight bytes of zero or one: byte i lands in bit 56 + i, and nothing else does."""
_REPEAT = 0x0101010101010101
"""Multiplier that makes eight copies of a byte."""
_SELECT = 0x8040201008040201 - 2**64
"""Mask of bit i of byte i, as a signed integer."""


def patterns(tensor: Tensor) -> Tensor:
    """The flat view of a contiguous tensor as integers of its width."""
    return tensor.detach().view(-1).view(PATTERN_OF[tensor.dtype])


def as_bytes(tensor: Tensor) -> Tensor:
    """The flat view of a contiguous tensor as bytes."""
    return tensor.detach().view(-1).view(torch.uint8)


def to_zigzag(steps: Tensor) -> Tensor:
    """0, -1, 1, -2, ... become 0, 1, 2, 3, ...: small steps of either sign have small patterns."""
    return (steps << 1) ^ (steps >> (8 * steps.itemsize - 1))


def from_zigzag(zigzag: Tensor) -> Tensor:
    """The steps that `to_zigzag` turned into these patterns."""
    # The shift of a signed integer copies its sign; the mask takes the copy off.
    halves = (zigzag >> 1) & torch.iinfo(zigzag.dtype).max
    return halves ^ -(zigzag & 1)


def to_planes(values_N: Tensor) -> Tensor:
    """Byte planes `[bytes of a value, N]`: first every value's lowest byte, then the next."""
    return values_N.contiguous().view(torch.uint8).view(-1, values_N.itemsize).T.contiguous()


def from_planes(planes: Tensor, dtype: torch.dtype) -> Tensor:
    """The values of this dtype that `to_planes` split into these planes."""
    # A copy even where the order is right already: a view as wider integers must be aligned.
    return planes.T.clone(memory_format=torch.contiguous_format).view(-1).view(dtype)


def pack_bits(bits: Tensor) -> Tensor:
    """Pack ones and zeros along the last axis, eight a byte; the last byte is filled up with zeros."""
    eighths = torch.nn.functional.pad(bits.to(torch.uint8), (0, -bits.shape[-1] % 8)).contiguous()
    return ((eighths.view(torch.int64) * _GATHER) >> 56).to(torch.uint8)


def unpack_bits(packed: Tensor, count: int) -> Tensor:
    """Undo `pack_bits`: the first `count` booleans along the last axis."""
    spread = ((packed.long() * _REPEAT) & _SELECT).contiguous()
    return spread.view(torch.uint8)[..., :count] != 0


def num_packed(count: int) -> int:
    """Number of bytes of so many packed bits."""
    return (count + 7) // 8
