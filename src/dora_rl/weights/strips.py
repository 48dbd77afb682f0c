"""Strips: tensors strung together, so that what is done to hundreds of them is done a few times.

A delta is made and read strip by strip. On a device each operation costs a launch, and a wait where its
result has a length of its own: over every tensor these take longer than the work. Where strips begin and end
follows from the tensors alone and is part of the file format.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

import torch
from torch import Tensor

from dora_rl.weights.bits import patterns

Tensors = Mapping[str, Tensor]
"""A version: every parameter under the Decoder's own name."""

_MOST_VALUES = 1 << 25
"""Most values of a strip of several tensors: intermediate results take some bytes a value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Strip:
    """Tensors of one dtype, end to end."""

    names: tuple[str, ...]
    sizes: tuple[int, ...]
    dtype: torch.dtype

    @property
    def size(self) -> int:
        """Number of values of all tensors of the strip."""
        return sum(self.sizes)

    @property
    def label(self) -> str:
        """A name of the strip for messages."""
        first, *others = self.names
        return f"tensors '{first}' to '{others[-1]}'" if others else f"tensor '{first}'"

    def strung(self, tensors: Tensors) -> Tensor:
        """The bit patterns of all tensors of the strip, end to end, in new memory."""
        return torch.cat([patterns(tensors[name]) for name in self.names])

    def views(self, patterns_N: Tensor) -> dict[str, Tensor]:
        """The strip's values tensor by tensor, each flat: views of what `strung` gave."""
        parts = patterns_N.view(self.dtype).split(list(self.sizes))
        return dict(zip(self.names, parts, strict=True))

    def located(self, indices_N: Tensor, counts: Sequence[int]) -> dict[str, Tensor]:
        """Places in the strip as places in each tensor that has some; `counts` says how many."""
        firsts = accumulate(self.sizes[:-1], initial=0)
        parts = zip(self.names, indices_N.split(list(counts)), firsts, strict=True)
        return {name: part - first for name, part, first in parts if len(part)}


def strips_of(tensors: Iterable[tuple[str, int, torch.dtype]]) -> list[Strip]:
    """Names, sizes and dtypes into strips: a new one where the dtype changes or it would grow too large."""
    found: list[Strip] = []
    for name, size, dtype in tensors:
        last = found[-1] if found else None
        if last is not None and last.dtype == dtype and last.size + size <= _MOST_VALUES:
            found[-1] = Strip(names=(*last.names, name), sizes=(*last.sizes, size), dtype=dtype)
        else:
            found.append(Strip(names=(name,), sizes=(size,), dtype=dtype))
    return found


def strips_in(tensors: Tensors) -> list[Strip]:
    """The strips of a version."""
    return strips_of((name, tensor.numel(), tensor.dtype) for name, tensor in tensors.items())


def counted(strips: Sequence[Strip], indices: Sequence[Tensor]) -> list[list[int]]:
    """How many of a strip's ascending places are in each of its tensors; one look at all strips."""
    if not strips:
        return []
    ends = [torch.tensor(list(accumulate(strip.sizes))) for strip in strips]
    on_device = torch.cat(ends).to(indices[0].device).split([len(each) for each in ends])
    below = [torch.searchsorted(places_N, own) for places_N, own in zip(indices, on_device, strict=True)]
    counts = iter(torch.cat(below).tolist())
    return [[b - a for a, b in pairwise([0, *(next(counts) for _ in strip.names)])] for strip in strips]
