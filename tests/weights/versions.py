"""Versions made of arbitrary bit patterns, NaNs and negative zeros among them."""

import torch
from torch import Tensor

from dora_rl.weights.bits import PATTERN_OF, patterns
from dora_rl.weights.strips import Tensors

SHAPES = {"embed.weight": (40, 16), "norm.weight": (16,), "scalar": (), "empty": (0, 3)}


def random_tensor(shape: tuple[int, ...], dtype: torch.dtype, generator: torch.Generator) -> Tensor:
    """Every bit pattern is as likely as any other."""
    limits = torch.iinfo(PATTERN_OF[dtype])
    bits = torch.randint(limits.min, limits.max, shape, generator=generator, dtype=PATTERN_OF[dtype])
    return bits.view(dtype)


def changed(tensor: Tensor, density: float, generator: torch.Generator, most: int = 3) -> Tensor:
    """A copy, a share of its values moved by up to `most` steps, one in twenty of those anywhere."""
    bits = tensor.view(PATTERN_OF[tensor.dtype]).clone()
    draw = torch.rand(bits.shape, generator=generator)
    steps = torch.randint(-most, most + 1, bits.shape, generator=generator, dtype=bits.dtype)
    elsewhere = random_tensor(tuple(tensor.shape), tensor.dtype, generator).view(bits.dtype)
    moved = torch.where(draw < density, bits + steps, bits)
    return torch.where(draw < 0.05 * density, elsewhere, moved).view(tensor.dtype)


def history(
    count: int, *, seed: int = 0, dtype: torch.dtype = torch.bfloat16, density: float = 0.05
) -> list[Tensors]:
    """Versions, each a small change to the one before it."""
    generator = torch.Generator().manual_seed(seed)
    versions: list[Tensors] = [
        {name: random_tensor(shape, dtype, generator) for name, shape in SHAPES.items()}
    ]
    while len(versions) < count:
        versions.append({name: changed(tensor, density, generator) for name, tensor in versions[-1].items()})
    return versions


def same_bits(one: Tensors, other: Tensors) -> bool:
    """Equality of bit patterns: NaN equals itself, and 0.0 is not -0.0."""
    return one.keys() == other.keys() and all(
        one[name].shape == other[name].shape and torch.equal(patterns(one[name]), patterns(other[name]))
        for name in one
    )
