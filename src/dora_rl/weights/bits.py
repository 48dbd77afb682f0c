"""Bit patterns of tensors: integer views, zigzag, byte planes, packed bits. On any device, without loops
over elements.

Bytes are little-endian, and bit `i` of packed bits is bit `i % 8` of byte `i // 8`.
"""

import torch
from torch import Tensor

PATTERN_OF = {torch.bfloat16: torch.int16, torch.float16: torch.int16, torch.float32: torch.int32}
"""The integer whose bits stand for a value's."""
DTYPES = {str(dtype).removeprefix("torch."): dtype for dtype in PATTERN_OF}


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
    """The steps again."""
    # The shift of a signed integer copies its sign; the mask takes the copy off.
    halves = (zigzag >> 1) & torch.iinfo(zigzag.dtype).max
    return halves ^ -(zigzag & 1)


def to_planes(values_N: Tensor) -> Tensor:
    """`[bytes of a value, N]`: first every value's lowest byte, then the next."""
    return values_N.contiguous().view(torch.uint8).view(-1, values_N.itemsize).T.contiguous()


def from_planes(planes: Tensor, dtype: torch.dtype) -> Tensor:
    """The values again."""
    # A copy even where the order is right already: a view as wider integers must be aligned.
    return planes.T.clone(memory_format=torch.contiguous_format).view(-1).view(dtype)


def pack_bits(bits: Tensor) -> Tensor:
    """Eight booleans a byte; the last byte is filled up with zeros."""
    eighths = torch.nn.functional.pad(bits.to(torch.uint8), (0, -len(bits) % 8)).view(-1, 8)
    packed = eighths[:, 0].clone()
    for place in range(1, 8):
        packed |= eighths[:, place] << place
    return packed


def unpack_bits(packed: Tensor, count: int) -> Tensor:
    """The first `count` booleans again."""
    places = torch.arange(8, dtype=torch.uint8, device=packed.device)
    return ((packed.unsqueeze(1) >> places) & 1).view(-1)[:count].bool()


def num_packed(count: int) -> int:
    """Bytes of so many packed bits."""
    return (count + 7) // 8
