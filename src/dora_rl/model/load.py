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
from dora_rl.model.shards import published_shapes, published_tensors

# Old checkpoints carry the frequencies of their rotary positions; they follow from the configuration.
_DERIVED_SUFFIX = "rotary_emb.inv_freq"
_HEAD = "lm_head.weight"
_FLOATS = ("F64", "F32", "F16", "BF16")
_UNQUANTIZED = "use the unquantized weights"
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


def check_weights(directory: Path) -> None:
    """Refuse a directory whose weights cannot be loaded, or are not those of its config.json.

    Reads only the heads of the files, so it takes no time and no memory.
    """
    config = read_config(directory / "config.json")
    awaited = {piece.name: piece.shape for piece in pieces(config)}
    try:
        for name, shape, dtype in published_shapes(directory):
            if name in awaited:
                _check_shape(name, shape, awaited.pop(name))
                if dtype not in _FLOATS:
                    raise ModelError(f"tensor '{name}' is quantized ({dtype})", hint=_UNQUANTIZED)
            elif not (name == _HEAD and config.is_tied) and not name.endswith(_DERIVED_SUFFIX):
                raise _unexpected(name, shape)
        if awaited:
            raise ModelError(_missing(awaited), hint=_AT_ODDS)
    except ModelError as error:
        if str(directory) in error.message:
            raise
        raise ModelError(f"cannot load {directory}: {error.message}", hint=error.hint) from error


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
            raise _unexpected(name, tuple(tensor.shape))
    if awaited:
        raise ModelError(_missing(awaited), hint=_AT_ODDS)
    if second_head is not None:
        _check_tied(decoder, second_head)


def _check(name: str, tensor: Tensor, shape: tuple[int, ...]) -> None:
    _check_shape(name, tuple(tensor.shape), shape)
    if not tensor.is_floating_point() or tensor.element_size() < 2:
        raise ModelError(f"tensor '{name}' is quantized ({tensor.dtype})", hint=_UNQUANTIZED)


def _check_shape(name: str, found: tuple[int, ...], wanted: tuple[int, ...]) -> None:
    if found != wanted:
        raise ModelError(
            f"tensor '{name}' has shape {list(found)}, not {list(wanted)}, which follows from {_keys(name)} "
            "in config.json",
            hint=_AT_ODDS,
        )


def _keys(tensor: str) -> str:
    """The keys of config.json from which the shape of a tensor follows."""
    _, _, module = tensor.rpartition(".")[0].rpartition(".")
    inner = "moe_intermediate_size" if ".experts." in tensor else "intermediate_size"
    return {
        "embed_tokens": "vocab_size and hidden_size",
        "lm_head": "vocab_size and hidden_size",
        "q_proj": "num_attention_heads, head_dim and hidden_size",
        "o_proj": "num_attention_heads, head_dim and hidden_size",
        "k_proj": "num_key_value_heads, head_dim and hidden_size",
        "v_proj": "num_key_value_heads, head_dim and hidden_size",
        "q_norm": "head_dim",
        "k_norm": "head_dim",
        "qkv_proj": "num_attention_heads, num_key_value_heads, head_dim and hidden_size",
        "gate_up_proj": "intermediate_size and hidden_size",
        "gate": "num_experts and hidden_size",
        "gate_proj": f"{inner} and hidden_size",
        "up_proj": f"{inner} and hidden_size",
        "down_proj": f"{inner} and hidden_size",
    }.get(module, "hidden_size")


def _unexpected(name: str, shape: tuple[int, ...]) -> ModelError:
    return ModelError(f"unexpected tensor '{name}' of shape {list(shape)}", hint=_AT_ODDS)


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
