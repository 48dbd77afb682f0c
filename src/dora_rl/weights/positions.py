"""Sorted positions in few bits.

    all      every position: nothing is stored
    bitmap   one bit for each of `size` places
    sorted   Elias-Fano: of each of N positions the low `l = floor(log2(size / N))` bits as l packed planes,
             then the high parts as one bitmap in which position j's is the one at `(position >> l) + j`

Elias-Fano stays within about half a bit of the entropy of evenly spread positions and needs neither a
dictionary nor a loop, and so is made and read on the device. Measured on real steps it is shorter than gaps
in Huffman codes where few values change, and general compression finds nothing left in it.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from dora_rl.weights.bits import num_packed, pack_bits, unpack_bits

Code = Literal["all", "bitmap", "sorted"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PositionCode:
    """How `count` of `size` positions are written; it decides the number of bytes."""

    size: int
    count: int

    @property
    def low_bits(self) -> int:
        """Number of low bits a position has in the sorted code."""
        return (self.size // self.count).bit_length() - 1

    @property
    def num_high(self) -> int:
        """Number of bits of the bitmap of high parts."""
        return self.count + (self.size >> self.low_bits) + 1

    @property
    def code(self) -> Code:
        """The shortest of the codes for so many positions."""
        if self.count in (0, self.size):
            return "all"
        return "sorted" if self._sorted_bytes < num_packed(self.size) else "bitmap"

    @property
    def num_bytes(self) -> int:
        """Number of bytes that the coded positions take."""
        match self.code:
            case "all":
                return 0
            case "bitmap":
                return num_packed(self.size)
            case "sorted":
                return self._sorted_bytes

    @property
    def _sorted_bytes(self) -> int:
        return self.low_bits * num_packed(self.count) + num_packed(self.num_high)


def encode(positions_N: Tensor, size: int) -> Tensor:
    """Code ascending positions below `size` as bytes."""
    shape = PositionCode(size=size, count=len(positions_N))
    match shape.code:
        case "all":
            return torch.empty(0, dtype=torch.uint8, device=positions_N.device)
        case "bitmap":
            return pack_bits(_marked(positions_N, size))
        case "sorted":
            planes = pack_bits((positions_N >> _places(shape, positions_N)) & 1)
            order_N = torch.arange(shape.count, device=positions_N.device)
            high = _marked((positions_N >> shape.low_bits) + order_N, shape.num_high)
            return torch.cat([planes.view(-1), pack_bits(high)])


def decode(data: Tensor, shape: PositionCode) -> Tensor:
    """The positions again, int64; ValueError where the bytes hold more or fewer than they promise.

    Whether they are ascending is for the caller to ask, of many at once: each answer waits for the device.
    """
    match shape.code:
        case "all":
            return torch.arange(shape.count, device=data.device)
        case "bitmap":
            return _ones(data, shape.size, shape.count)
        case "sorted":
            return _from_sorted(data, shape)


def _from_sorted(data: Tensor, shape: PositionCode) -> Tensor:
    low, high = data.split([shape.low_bits * num_packed(shape.count), num_packed(shape.num_high)])
    ones = _ones(high, shape.num_high, shape.count)
    high_N = (ones - torch.arange(shape.count, device=data.device)) << shape.low_bits
    planes = unpack_bits(low.view(shape.low_bits, num_packed(shape.count)), shape.count)
    return high_N + (planes.long() << _places(shape, data)).sum(0)


def _places(shape: PositionCode, like: Tensor) -> Tensor:
    """The bit shifts of the low bits, one row for each."""
    return torch.arange(shape.low_bits, device=like.device).unsqueeze(1)


def are_ascending(positions_N: Tensor, size: int) -> Tensor:
    """Whether these are positions below `size`, each above the one before it; one boolean where they are."""
    return (positions_N[1:] > positions_N[:-1]).all() & (positions_N[-1] < size)


def _ones(packed: Tensor, size: int, count: int) -> Tensor:
    ones = unpack_bits(packed, size).nonzero().squeeze(1)
    if len(ones) != count:
        raise ValueError(f"{len(ones)} positions where {count} are promised")
    return ones


def _marked(positions_N: Tensor, size: int) -> Tensor:
    bits = torch.zeros(size, dtype=torch.bool, device=positions_N.device)
    bits[positions_N] = True
    return bits
