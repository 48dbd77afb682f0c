"""The pieces tile the parameters: every number of a model has one published place."""

from pathlib import Path

import torch
from transformers import PreTrainedModel

from dora_rl.model.decoder import Decoder
from dora_rl.model.hub_config import from_published
from dora_rl.model.parameter_layout import pieces
from dora_rl.model.shards import published_tensors


def test_pieces_cover_every_element_of_every_parameter_once(reference: PreTrainedModel) -> None:
    decoder = Decoder.empty(from_published(reference.config.to_dict()))
    counts = {name: torch.zeros_like(parameter) for name, parameter in decoder.named_parameters()}
    for piece in pieces(decoder.config):
        view = piece.of(counts[piece.parameter])
        assert view.shape == piece.shape, piece
        view += 1
    for name, count in counts.items():
        assert (count == 1).all(), name


def test_pieces_are_named_and_shaped_as_transformers_saves_them(
    reference: PreTrainedModel, directory: Path
) -> None:
    ours = {piece.name: piece.shape for piece in pieces(from_published(reference.config.to_dict()))}
    assert ours == {name: tuple(tensor.shape) for name, tensor in published_tensors(directory)}
