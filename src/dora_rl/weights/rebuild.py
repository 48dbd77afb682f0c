"""Versions out of files: an anchor led on by deltas, or deltas composed for whoever holds a base.

Each delta names the identity of the version it was made against, so a file of another lineage is found out,
and carries a sum over the values it expects, so weights of another lineage are too.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from dora_rl.model.delta import Delta
from dora_rl.weights.bits import DTYPES
from dora_rl.weights.chain import File
from dora_rl.weights.channel import Resident
from dora_rl.weights.container import Header, TensorEntry
from dora_rl.weights.difference import Steps, Tensors, apply, change_of, wrong_base
from dora_rl.weights.errors import WrongBase
from dora_rl.weights.shelf import Shelf


def rebuilt(shelf: Shelf, chain: Sequence[File], device: str) -> dict[str, Tensor]:
    """The version a chain leads to: the files as `Inventory.chain` lists them."""
    (_, anchor), *deltas = chain
    previous, tensors = shelf.read_anchor(anchor)
    tensors = {name: tensor.to(device) for name, tensor in tensors.items()}
    for _, version in deltas:
        header, coded = shelf.read_delta(version)
        _check_follows(shelf, header, previous)
        _check_fits(shelf, header, tensors)
        for name, steps in shelf.decode_delta(header, coded, device).items():
            _named(shelf, header, name, steps, tensors[name])
        previous = header
    return tensors


def delta_onto(shelf: Shelf, version: int, base: Resident) -> Delta:
    """One delta from a base to a version, through all between them."""
    if version <= base.version:
        raise WrongBase(f"version {version} is not newer than version {base.version}, which is resident")
    device = next(iter(base.tensors.values())).device
    changes: dict[str, list[Steps]] = {}
    previous: Header | None = None
    for each in range(base.version + 1, version + 1):
        header, coded = shelf.read_delta(each)
        if previous is not None:
            _check_follows(shelf, header, previous)
        _check_fits(shelf, header, base.tensors)
        for name, steps in shelf.decode_delta(header, coded, device).items():
            changes.setdefault(name, []).append(steps)
        previous = header
    found = {name: change_of(steps, base.tensors[name]) for name, steps in changes.items()}
    # One look at them all: each would wait for the device.
    if found and not torch.stack([do_fit for _, do_fit in found.values()]).all():
        path = shelf.path("delta", base.version + 1)
        raise WrongBase(f"{path}: {wrong_base().message}", hint="load the whole version instead")
    return {name: change for name, (change, _) in found.items()}


def _named(shelf: Shelf, header: Header, name: str, steps: Steps, tensor: Tensor) -> None:
    try:
        apply(steps, tensor)
    except WrongBase as error:
        raise WrongBase(f"{shelf.path('delta', header.version)}, tensor '{name}': {error.message}") from error


def _check_follows(shelf: Shelf, header: Header, previous: Header) -> None:
    if (header.base, header.base_identity) != (previous.version, previous.identity):
        raise WrongBase(
            f"{shelf.path('delta', header.version)} was made against another version {previous.version}",
            hint="it comes from another run, or a file was replaced",
        )


def _check_fits(shelf: Shelf, header: Header, tensors: Tensors) -> None:
    if {entry.name for entry in header.tensors} != tensors.keys():
        raise WrongBase(f"{shelf.path('delta', header.version)} changes another set of tensors")
    for entry in header.tensors:
        if not _fits(entry, tensors[entry.name]):
            path = shelf.path("delta", header.version)
            raise WrongBase(f"{path}: tensor '{entry.name}' has another shape or dtype in the base")


def _fits(entry: TensorEntry, tensor: Tensor) -> bool:
    return (torch.Size(entry.shape), DTYPES[entry.dtype]) == (tensor.shape, tensor.dtype)
