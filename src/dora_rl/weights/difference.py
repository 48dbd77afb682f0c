"""What changed between two versions of a tensor: where, and by how many steps of its bit pattern.

Patterns are integers and a step is their difference modulo 2**width, so adding steps to the base gives the
new version exactly, whatever the values mean. At the learning rates of RL nine changed values in ten move by
one step. A sum over the old patterns at the changed places travels along: whoever applies the steps finds out
whether they have the base they were made against, at no more than the cost of applying them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dora_rl.model.delta import Change, Delta
from dora_rl.weights.bits import from_planes, from_zigzag, patterns, to_planes, to_zigzag
from dora_rl.weights.errors import WrongBase
from dora_rl.weights.positions import Shape, decode, encode

Tensors = Mapping[str, Tensor]
"""A version: every parameter under the Decoder's own name."""

_MIX = -0x61C8864680B583EB
"""2**64 divided by the golden ratio, as a signed integer: odd, its bits without pattern."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Steps:
    """The changes of one tensor."""

    indices_N: Tensor
    steps_N: Tensor
    base_sum: Tensor
    """Of the old patterns there; one int64."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Coded:
    """The same in few bytes."""

    count: int
    positions: Tensor
    planes: Tensor
    """`[bytes of a value, count]`."""
    base_sum: int


def steps_between(old: Tensor, new: Tensor) -> Steps:
    """What leads from one tensor to the other, both on one device."""
    old_bits, all_steps = patterns(old), patterns(new) - patterns(old)
    indices_N = all_steps.nonzero().squeeze(1)
    return Steps(
        indices_N=indices_N,
        steps_N=all_steps[indices_N],
        base_sum=_sum_of(indices_N, old_bits[indices_N]),
    )


def encode_all(old: Tensors, new: Tensors) -> dict[str, Coded]:
    """What leads from one version to the other, in host memory; from a device it comes in one transfer."""
    counts: list[int] = []
    parts: list[Tensor] = []
    sums: list[Tensor] = []
    for name, tensor in new.items():
        each = steps_between(old[name], tensor)
        counts.append(len(each.indices_N))
        parts += [encode(each.indices_N, tensor.numel()), to_planes(to_zigzag(each.steps_N)).view(-1)]
        sums.append(each.base_sum)
    all_sums = torch.stack(sums).view(torch.uint8)
    *on_host, host_sums = torch.cat([*parts, all_sums]).cpu().split([*map(len, parts), len(all_sums)])
    # A view as wider integers must begin at a multiple of their width; a copy does.
    base_sums = host_sums.clone().view(torch.int64).tolist()
    return {
        name: Coded(
            count=count,
            positions=on_host[2 * place],
            planes=on_host[2 * place + 1].view(new[name].itemsize, count),
            base_sum=base_sum,
        )
        for place, (name, count, base_sum) in enumerate(zip(new, counts, base_sums, strict=True))
    }


def decoded(coded: Coded, size: int, dtype: torch.dtype, base_sum: Tensor) -> Steps:
    """The steps again, on the device of the code and the sum; ValueError where counts are not as promised."""
    return Steps(
        indices_N=decode(coded.positions, Shape(size=size, count=coded.count)),
        steps_N=from_zigzag(from_planes(coded.planes, dtype)),
        base_sum=base_sum,
    )


def apply(steps: Steps, tensor: Tensor) -> None:
    """Lead a tensor on, in place; WrongBase, and nothing changed, if the steps were not made against it."""
    bits = patterns(tensor)
    old_N = bits[steps.indices_N]
    if not _fit(steps, old_N):
        raise wrong_base()
    bits[steps.indices_N] = old_N + steps.steps_N


def change_of(chain: Sequence[Steps], base: Tensor) -> tuple[Change, Tensor]:
    """The new values after all the steps in order, for whoever holds the base; the base stays as it is.

    And whether all steps met what they were made against: a boolean where the tensors are.
    """
    (first, *others) = chain
    indices_N = torch.cat([each.indices_N for each in chain]).unique() if others else first.indices_N
    bits_N = patterns(base)[indices_N]
    do_fit = torch.ones((), dtype=torch.bool, device=base.device)
    for steps in chain:
        places = torch.searchsorted(indices_N, steps.indices_N) if others else slice(None)
        old = bits_N[places]
        do_fit = do_fit & _fit(steps, old)
        bits_N[places] = old + steps.steps_N
    return Change(indices_N=indices_N, values_N=bits_N.view(base.dtype)), do_fit


def changes_between(old: Tensors, new: Tensors) -> Delta:
    """What turns one version into another, both whole; on the devices of the old."""
    if new.keys() != old.keys():
        raise WrongBase("the two versions have other tensors")
    changes = {name: _change(old[name], tensor) for name, tensor in new.items()}
    return {name: change for name, change in changes.items() if len(change.indices_N)}


def _change(old: Tensor, new: Tensor) -> Change:
    if (old.shape, old.dtype) != (new.shape, new.dtype):
        raise WrongBase(f"{new.dtype} of shape {list(new.shape)} for {old.dtype} of {list(old.shape)}")
    new = new.to(old.device).contiguous()
    indices_N = (patterns(old) != patterns(new)).nonzero().squeeze(1)
    return Change(indices_N=indices_N, values_N=new.view(-1)[indices_N])


def _sum_of(indices_N: Tensor, bits_N: Tensor) -> Tensor:
    mixed = (indices_N + 1) * _MIX
    return ((mixed ^ (mixed >> 31)) * (bits_N.long() + 1)).sum()


def _fit(steps: Steps, old_N: Tensor) -> Tensor:
    """Whether the steps were made against these patterns."""
    return _sum_of(steps.indices_N, old_N) == steps.base_sum


def wrong_base() -> WrongBase:
    """What is wrong where they were not."""
    return WrongBase("the delta was made against other weights than these")
