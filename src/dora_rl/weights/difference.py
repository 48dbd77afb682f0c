"""What changed between two versions of a strip: where, and by how many steps of its bit pattern.

Patterns are integers and a step is their difference modulo 2**width, so adding steps to the base gives the
new version exactly, whatever the values mean. At the learning rates of RL nine changed values in ten move by
one step. A sum over the old patterns at the changed places travels along: whoever applies the steps finds out
whether they have the base they were made against, at no more than the cost of applying them.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dora_rl.model.delta import Delta, ParameterChange
from dora_rl.weights.bits import from_planes, from_zigzag, patterns, to_planes, to_zigzag
from dora_rl.weights.errors import WrongBase
from dora_rl.weights.positions import PositionCode, decode, encode
from dora_rl.weights.strips import Strip, Tensors, counted

_MIX = -0x61C8864680B583EB
"""Multiplier of a hash: 2**64 divided by the golden ratio, odd, as a signed integer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StripSteps:
    """The changed values of one strip: where, and by how many steps of the bit pattern."""

    indices_N: Tensor
    steps_N: Tensor
    base_sum: Tensor
    """Sum of the old patterns at the changed places, one int64."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Coded:
    """The changed values of one strip, coded in few bytes."""

    count: int
    positions: Tensor
    planes: Tensor
    """Byte planes of the steps, `[bytes of a value, count]`."""
    base_sum: int


def steps_between(old_N: Tensor, new_N: Tensor) -> StripSteps:
    """The steps from old patterns to new ones, which are overwritten; both on one device."""
    all_steps = new_N.sub_(old_N)
    indices_N = all_steps.nonzero().squeeze(1)
    return StripSteps(
        indices_N=indices_N,
        steps_N=all_steps[indices_N],
        base_sum=_sum_of(indices_N, old_N[indices_N]),
    )


def encode_all(strips: Sequence[Strip], old: Sequence[Tensor], new: Tensors) -> list[Coded]:
    """Code the difference of two versions, strip by strip; from a device it comes in one transfer."""
    counts: list[int] = []
    parts: list[Tensor] = []
    sums: list[Tensor] = []
    for strip, old_N in zip(strips, old, strict=True):
        each = steps_between(old_N, strip.strung(new))
        counts.append(len(each.indices_N))
        parts += [encode(each.indices_N, strip.size), to_planes(to_zigzag(each.steps_N)).view(-1)]
        sums.append(each.base_sum)
    all_sums = torch.stack(sums).view(torch.uint8)
    *on_host, host_sums = torch.cat([*parts, all_sums]).cpu().split([*map(len, parts), len(all_sums)])
    # A view as wider integers must begin at a multiple of their width; a copy does.
    base_sums = host_sums.clone().view(torch.int64).tolist()
    return [
        Coded(
            count=count,
            positions=on_host[2 * place],
            planes=on_host[2 * place + 1].view(strip.dtype.itemsize, count),
            base_sum=base_sum,
        )
        for place, (strip, count, base_sum) in enumerate(zip(strips, counts, base_sums, strict=True))
    ]


def decoded(coded: Coded, size: int, dtype: torch.dtype, base_sum: Tensor) -> StripSteps:
    """Decode the steps on the device of code and sum; ValueError where counts are not as promised."""
    return StripSteps(
        indices_N=decode(coded.positions, PositionCode(size=size, count=coded.count)),
        steps_N=from_zigzag(from_planes(coded.planes, dtype)),
        base_sum=base_sum,
    )


def changes_of(strips: Sequence[Strip], chains: Sequence[Sequence[StripSteps]], base: Tensors) -> Delta:
    """The new values after all the steps of each strip in order, for whoever holds the base.

    WrongBase if some steps were not made against it; the base stays as it is.
    """
    all_indices = [_joined(chain) for chain in chains]
    changes: dict[str, ParameterChange] = {}
    do_fit: list[Tensor] = []
    for strip, chain, indices_N, counts in zip(
        strips, chains, all_indices, counted(strips, all_indices), strict=True
    ):
        places = strip.located(indices_N, counts)
        if not places:
            continue
        bits_N = torch.cat([patterns(base[name])[places_N] for name, places_N in places.items()])
        for steps in chain:
            own = torch.searchsorted(indices_N, steps.indices_N) if len(chain) > 1 else slice(None)
            old_N = bits_N[own]
            do_fit.append(_sum_of(steps.indices_N, old_N) == steps.base_sum)
            bits_N[own] = old_N + steps.steps_N
        values = bits_N.view(strip.dtype).split([len(places_N) for places_N in places.values()])
        for (name, places_N), values_N in zip(places.items(), values, strict=True):
            changes[name] = ParameterChange(indices_N=places_N, values_N=values_N)
    # One look at them all: each would wait for the device.
    if do_fit and not torch.stack(do_fit).all():
        raise WrongBase("the delta was made against other weights than these")
    return changes


def _joined(chain: Sequence[StripSteps]) -> Tensor:
    """The union of places where one of several steps changes something."""
    (first, *others) = chain
    return torch.cat([each.indices_N for each in chain]).unique() if others else first.indices_N


def changes_between(old: Tensors, new: Tensors) -> Delta:
    """The delta that turns one whole version into another; on the devices of the old."""
    if new.keys() != old.keys():
        raise WrongBase("the two versions have other tensors")
    changes = {name: _change(old[name], tensor) for name, tensor in new.items()}
    return {name: change for name, change in changes.items() if len(change.indices_N)}


def _change(old: Tensor, new: Tensor) -> ParameterChange:
    if (old.shape, old.dtype) != (new.shape, new.dtype):
        raise WrongBase(f"{new.dtype} of shape {list(new.shape)} for {old.dtype} of {list(old.shape)}")
    new = new.to(old.device).contiguous()
    indices_N = (patterns(old) != patterns(new)).nonzero().squeeze(1)
    return ParameterChange(indices_N=indices_N, values_N=new.view(-1)[indices_N])


def _sum_of(indices_N: Tensor, bits_N: Tensor) -> Tensor:
    mixed = (indices_N + 1) * _MIX
    return ((mixed ^ (mixed >> 31)) * (bits_N.long() + 1)).sum()
