"""A model of transformers into a Hugging Face directory, by transformers itself: tokenizer and all."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dora_rl.core.errors import ModelError
from dora_rl.model.hf.hf_decoder import HfDecoder
from dora_rl.model.save import GENERATION_CONFIG, copy_companions


def save_hf(
    decoder: HfDecoder, tensors: Mapping[str, Tensor], directory: Path, *, origin: Path | None = None
) -> None:
    """Write a decoder's modules with other weights, by their names among its parameters.

    The configuration comes last: a directory cut short by a crash is one without a model.
    """
    directory.mkdir(parents=True, exist_ok=True)
    if any(directory.glob("*.safetensors")) or (directory / "config.json").exists():
        raise ModelError(f"{directory} already holds a model", hint="choose another directory")
    if origin is not None:
        copy_companions(origin, directory)
    had_defaults = (directory / GENERATION_CONFIG).exists()
    kept = (directory / GENERATION_CONFIG).read_bytes() if had_defaults else b""
    own, dtype = decoder.own, next(iter(tensors.values())).dtype
    own.save_pretrained(directory, state_dict=_whole_state(own, tensors))
    if had_defaults:
        (directory / GENERATION_CONFIG).write_bytes(kept)
    _settle_config(directory / "config.json", decoder.config.directory, dtype)


def _whole_state(own: Any, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Weights and buffers by all their names: those that are tied have several."""
    first = {id(each): name for name, each in own.named_parameters()}
    weights = {
        name: tensors[first[id(each)]].detach().cpu()
        for name, each in own.named_parameters(remove_duplicate=False)
    }
    return {name: weights.get(name, each) for name, each in own.state_dict().items()}


def _settle_config(path: Path, origin: str, dtype: torch.dtype) -> None:
    """Say in which dtype the weights are, and nothing of how they were opened here."""
    written = json.loads(path.read_text(encoding="utf-8"))
    named = str(dtype).removeprefix("torch.")
    for key in ("_name_or_path", "_attn_implementation_autoset", "attn_implementation"):
        written.pop(key, None)
    path.write_text(json.dumps(written | {"dtype": named}, indent=2) + "\n", encoding="utf-8")
