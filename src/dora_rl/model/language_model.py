"""A model from a directory, by the native decoder or by transformers: the one place that knows both.

Everything above asks here for sizes, weights, names and files, and gets the same calls whoever computes. A
record says which it is: a ModelConfig is native, an HfModel is not.
"""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from dora_rl.model.config import ModelConfig, ModelSizes
from dora_rl.model.decoder import Decoder
from dora_rl.model.hf.attention import PackedRules
from dora_rl.model.hf.hf_decoder import HfDecoder, SideBySide
from dora_rl.model.hf.hf_model import HfModel, read_hf_model
from dora_rl.model.hf.save import save_hf
from dora_rl.model.hf.skeleton import hf_pieces
from dora_rl.model.hub_config import read_config
from dora_rl.model.load import load_decoder
from dora_rl.model.packed_sequences import Packed
from dora_rl.model.parameter_layout import Piece, pieces
from dora_rl.model.router_notes import RouterNotes
from dora_rl.model.save import save_decoder
from dora_rl.model.varlen import AttentionKind, attention_over

Computing = Literal["native", "transformers"]
"""Who computes a model: the native decoder, or transformers."""
LanguageModel = Decoder | HfDecoder
PassKind = AttentionKind | Literal["padded"]


def read_model(directory: Path, computing: Computing) -> ModelConfig | HfModel:
    """What a directory holds; a ModelError where whoever is to compute it cannot."""
    if computing == "native":
        return read_config(directory / "config.json")
    return read_hf_model(directory)


def load_model(
    directory: Path,
    computing: Computing,
    *,
    device: torch.device | str = "cpu",
    dtype: torch.dtype | None = None,
    is_filled_up: bool = False,
) -> LanguageModel:
    """Load the model in a directory; `is_filled_up` where sequences shall not be packed."""
    if computing == "native":
        return load_decoder(directory, device=device, dtype=dtype)
    return HfDecoder.load(read_hf_model(directory), device=device, dtype=dtype, is_filled_up=is_filled_up)


def pieces_of(model: ModelSizes) -> Iterator[Piece]:
    """Every tensor of a model as it is published, and the parameter it lies in."""
    match model:
        case ModelConfig():
            return pieces(model)
        case HfModel():
            return hf_pieces(model.directory)
        case _:
            raise AssertionError(f"{type(model)} is no model")


def hidden_of(
    decoder: LanguageModel, packed: Packed, kind: PassKind = "auto", routing: RouterNotes | None = None
) -> Tensor:
    """The hidden states of packed sequences, which see nothing of each other.

    `routing` prescribes or notes the experts of the native decoder.
    """
    if isinstance(decoder, HfDecoder):
        lengths = packed.lengths
        attending = PackedRules(lengths) if decoder.is_seamed else SideBySide(lengths)
        hidden_TH: Tensor = decoder(packed.tokens_T, packed.positions_T, attending)
    else:
        assert kind != "padded", "the native decoder packs"
        attention = attention_over(packed, decoder.head_VH.dtype, kind)
        hidden_TH = decoder(packed.tokens_T, packed.positions_T, attention, routing)
    return hidden_TH


@torch.no_grad()
def filled_like(
    decoder: LanguageModel, weights: Iterable[tuple[str, Tensor]], *, dtype: torch.dtype | None = None
) -> LanguageModel:
    """Another model of the same shape with these weights, all of them by name, and frozen."""
    if isinstance(decoder, HfDecoder):
        # A copy: what is no weight comes along, and transformers has no other way to make it.
        other: LanguageModel = decoder.copied(dtype=dtype or getattr(torch, decoder.config.dtype))
    else:
        other = Decoder.empty(decoder.config, device=decoder.device, dtype=dtype).requires_grad_(False)
    awaited = dict(other.named_parameters())
    for name, tensor in weights:
        awaited.pop(name).copy_(tensor)
    assert not awaited, f"weights without a value: {', '.join(awaited)}"
    return other


def save_model(
    decoder: LanguageModel, weights: Mapping[str, Tensor], directory: Path, *, origin: Path | None = None
) -> None:
    """Write a decoder's model with these weights as a Hugging Face directory.

    The tokenizer and generation defaults are those of `origin`.
    """
    if isinstance(decoder, HfDecoder):
        save_hf(decoder, weights, directory, origin=origin)
        return
    other = Decoder.empty(decoder.config, device="meta")
    other.load_state_dict(dict(weights), assign=True)
    save_decoder(other, directory, origin=origin)
