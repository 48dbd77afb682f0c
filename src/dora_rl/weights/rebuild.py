"""Versions out of files: an anchor led on by deltas, and the steps of a delta for whoever holds its base.

Each delta names the identity of the version it was made against, so a file of another lineage is found out,
and carries a sum over the values it expects, so weights of another lineage are too.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from dora_rl.weights.bits import DTYPES, patterns
from dora_rl.weights.chain import File
from dora_rl.weights.container import TensorEntry, VersionHeader
from dora_rl.weights.difference import StripSteps, changes_of
from dora_rl.weights.errors import WrongBase
from dora_rl.weights.shelf import Shelf
from dora_rl.weights.strips import Tensors


def rebuilt(shelf: Shelf, chain: Sequence[File], device: str) -> dict[str, Tensor]:
    """The version a chain leads to: the files as `Inventory.chain` lists them."""
    (_, anchor), *deltas = chain
    previous, tensors = shelf.read_anchor(anchor)
    tensors = {name: tensor.to(device) for name, tensor in tensors.items()}
    for _, version in deltas:
        header, steps = read_steps(shelf, version, tensors, previous)
        # One strip at a time: what is made on the way takes several times its bytes.
        for strip, own in zip(header.strips, steps, strict=True):
            try:
                delta = changes_of([strip], [[own]], tensors)
            except WrongBase as error:
                raise WrongBase(f"{shelf.path('delta', version)}: {error.message}") from error
            for name, change in delta.items():
                patterns(tensors[name])[change.indices_N] = patterns(change.values_N)
        previous = header
    return tensors


def read_steps(
    shelf: Shelf, version: int, onto: Tensors, previous: VersionHeader | None
) -> tuple[VersionHeader, list[StripSteps]]:
    """The steps of one delta for these tensors, on their device."""
    header, coded = shelf.read_delta(version)
    if previous is not None:
        _check_follows(shelf, header, previous)
    _check_fits(shelf, header, onto)
    return header, shelf.decode_delta(header, coded, next(iter(onto.values())).device)


def _check_follows(shelf: Shelf, header: VersionHeader, previous: VersionHeader) -> None:
    if (header.base, header.base_identity) != (previous.version, previous.identity):
        raise WrongBase(
            f"{shelf.path('delta', header.version)} was made against another version {previous.version}",
            hint="it comes from another run, or a file was replaced",
        )
    if header.tensors != previous.tensors:
        raise WrongBase(f"{shelf.path('delta', header.version)} has its tensors in another order or shape")


def _check_fits(shelf: Shelf, header: VersionHeader, tensors: Tensors) -> None:
    if {entry.name for entry in header.tensors} != tensors.keys():
        raise WrongBase(f"{shelf.path('delta', header.version)} changes another set of tensors")
    for entry in header.tensors:
        if not _fits(entry, tensors[entry.name]):
            path = shelf.path("delta", header.version)
            raise WrongBase(f"{path}: tensor '{entry.name}' has another shape or dtype in the base")


def _fits(entry: TensorEntry, tensor: Tensor) -> bool:
    return (torch.Size(entry.shape), DTYPES[entry.dtype]) == (tensor.shape, tensor.dtype)
