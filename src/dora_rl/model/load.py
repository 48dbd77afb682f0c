"""A Decoder from a Hugging Face directory.

Nothing is taken on trust: every tensor the configuration asks for must be there once, with its shape, and
none besides. Tensors stream to their place, so host memory holds the parameters and one tensor more.
"""

from collections.abc import Collection, Iterable
from pathlib import Path

import torch
from torch import Tensor

from dora_rl.core.errors import ModelError
from dora_rl.model.decoder import Decoder
from dora_rl.model.hub_config import read_config
from dora_rl.model.parameter_layout import pieces
from dora_rl.model.shards import published_tensors

# Old checkpoints carry the frequencies of their rotary positions; they follow from the configuration.
_DERIVED_SUFFIX = "rotary_emb.inv_freq"
_HEAD = "lm_head.weight"
_AT_ODDS = "config.json and the weights do not belong together"


def load_decoder(
    directory: Path, *, device: torch.device | str = "cpu", dtype: torch.dtype | None = None
) -> Decoder:
    """Load the model in the directory, its weights cast to `dtype` where one is given."""
    decoder = Decoder.empty(read_config(directory / "config.json"), device=device, dtype=dtype)
    try:
        fill(decoder, published_tensors(directory))
    except ModelError as error:
        raise ModelError(f"cannot load {directory}: {error.message}", hint=error.hint) from error
    return decoder


@torch.no_grad()
def fill(decoder: Decoder, tensors: Iterable[tuple[str, Tensor]]) -> None:
    """Set every parameter from published tensors, each copied to its place as it comes."""
    awaited = {piece.name: piece for piece in pieces(decoder.config)}
    parameters = dict(decoder.named_parameters())
    second_head: Tensor | None = None
    for name, tensor in tensors:
        if name in awaited:
            piece = awaited.pop(name)
            _check(name, tensor, piece.shape)
            piece.of(parameters[piece.parameter]).copy_(tensor)
        elif name == _HEAD and decoder.config.is_tied:
            second_head = tensor
        elif not name.endswith(_DERIVED_SUFFIX):
            raise ModelError(f"unexpected tensor '{name}' of shape {list(tensor.shape)}", hint=_AT_ODDS)
    if awaited:
        raise ModelError(_missing(awaited), hint=_AT_ODDS)
    if second_head is not None:
        _check_tied(decoder, second_head)


def _check(name: str, tensor: Tensor, shape: tuple[int, ...]) -> None:
    if tensor.shape != shape:
        raise ModelError(f"tensor '{name}' has shape {list(tensor.shape)}, not {list(shape)}", hint=_AT_ODDS)
    if not tensor.is_floating_point() or tensor.element_size() < 2:
        raise ModelError(f"tensor '{name}' is quantized ({tensor.dtype})", hint="use the unquantized weights")


def _check_tied(decoder: Decoder, head_VH: Tensor) -> None:
    """Refuse a tied model stored with a head of its own that is not the embedding."""
    embed_VH = decoder.embed.weight
    _check(_HEAD, head_VH, tuple(embed_VH.shape))
    if not torch.equal(head_VH.to(embed_VH), embed_VH):
        raise ModelError(
            f"tensor '{_HEAD}' differs from the embedding it is tied to",
            hint="set tie_word_embeddings to false in config.json to use both",
        )


def _missing(names: Collection[str]) -> str:
    first, *others = names
    return f"tensor '{first}' is missing" + (f", and {len(others)} more" if others else "")
