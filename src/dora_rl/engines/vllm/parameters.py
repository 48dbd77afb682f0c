"""Where the decoder's parameters lie in vLLM's model, and how a version gets there.

A whole version goes in as vLLM reloads a checkpoint, whatever layouts its kernels want. Where the decoder's
parameters are then found in vLLM's own memory, bit for bit, later versions are changes in place, as in the
native engine; where one is not, every version is reloaded whole. No request may be unfinished meanwhile: its
KV is of the old version.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from dora_rl.engines.errors import VersionError
from dora_rl.engines.native.deltas import apply_delta, check_delta
from dora_rl.model.config import ModelConfig
from dora_rl.model.delta import Delta
from dora_rl.model.parameter_layout import Piece, pieces

Tensors = Mapping[str, Tensor]


class VllmParameters:
    """The weights of the one model that a vLLM engine holds."""

    def __init__(self, library: Any, model: ModelConfig) -> None:
        self._library = library
        self._pieces = list(pieces(model))
        self.in_place: dict[str, Tensor] | None = None
        """The decoder's parameters as views of vLLM's memory; None where it keeps them otherwise."""

    def reload(self, version: int, tensors: Tensors) -> None:
        """Set all weights; an error in the middle of it leaves no version at all, and ends the engine."""
        self._check(version, tensors)
        published = ((piece.name, piece.of(tensors[piece.parameter])) for piece in self._pieces)
        self._library.collective_rpc("reload_weights", kwargs={"weights_iterator": published})
        self.in_place = self._found(tensors)

    def change(self, delta: Delta) -> None:
        """Change some values; a delta that does not fit is refused before the first one is."""
        assert self.in_place is not None, "there are no parameters to change in place"
        check_delta(delta, self.in_place)
        apply_delta(self.in_place, delta)

    def _check(self, version: int, tensors: Tensors) -> None:
        for piece in self._pieces:
            given = tensors.get(piece.parameter)
            if given is None or tuple(piece.of(given).shape) != piece.shape:
                shape = "missing" if given is None else f"of shape {list(given.shape)}"
                raise VersionError(f"version {version} is of another model: '{piece.parameter}' is {shape}")

    def _found(self, tensors: Tensors) -> dict[str, Tensor] | None:
        """The memory in which these tensors are found again; None if one of them is not."""
        found: dict[str, Tensor] = {}
        for model in self._library.apply_model(lambda model: model):
            theirs = dict(model.named_parameters())
            packed = dict(_packed(getattr(model, "packed_modules_mapping", {})))
            for piece in self._pieces:
                if piece.parameter not in found:
                    parameter = theirs.get(_name(piece, packed))
                    view = None if parameter is None else _view(parameter.detach(), tensors[piece.parameter])
                    if view is None:
                        return None
                    found[piece.parameter] = view
        return found


def _packed(mapping: Mapping[str, list[str]]) -> Iterator[tuple[str, str]]:
    """The module in which vLLM keeps each published module together with others."""
    for whole, parts in mapping.items():
        for part in parts:
            yield part, whole


def _name(piece: Piece, packed: Mapping[str, str]) -> str:
    """vLLM's name of the parameter that holds a published tensor."""
    *above, module, kind = piece.name.split(".")
    return ".".join([*above, packed.get(module, module), kind])


def _view(theirs: Tensor, ours: Tensor) -> Tensor | None:
    """The rows of a parameter that are a tensor of ours, without those added to fill a kernel's tiles."""
    if theirs.dim() != ours.dim() or theirs.dtype != ours.dtype or not theirs.is_contiguous():
        return None
    view = theirs[: len(ours)]
    is_same = view.shape == ours.shape and torch.equal(view, ours.to(view.device))
    return view if is_same else None
