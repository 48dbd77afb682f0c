"""A Decoder into a Hugging Face directory that transformers and serving engines open.

Writes what `load` reads, bit for bit, under the published names. The configuration comes last: a directory
cut short by a crash is one without a model, not one with half of it.
"""

import json
import shutil
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch import Tensor

from dora_rl.core.errors import ModelError
from dora_rl.model.config import ModelConfig
from dora_rl.model.decoder import Decoder
from dora_rl.model.hub_config import to_dtype, to_published
from dora_rl.model.parameter_layout import pieces
from dora_rl.model.shards import INDEX, WEIGHTS
from dora_rl.model.tensor_files import save_tensors

SHARD_BYTES = 5_000_000_000
GENERATION_CONFIG = "generation_config.json"
COMPANIONS = (
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
    "chat_template.json",
    GENERATION_CONFIG,
)
"""Files of a model directory that training leaves as they are."""


def save_decoder(
    decoder: Decoder, directory: Path, *, origin: Path | None = None, shard_bytes: int = SHARD_BYTES
) -> None:
    """Write the model, with the tokenizer and generation defaults of `origin`, the directory it came from."""
    directory.mkdir(parents=True, exist_ok=True)
    if any(directory.glob("*.safetensors")) or (directory / "config.json").exists():
        raise ModelError(f"{directory} already holds a model", hint="choose another directory")
    if origin is not None:
        copy_companions(origin, directory)
    config = msgspec.structs.replace(decoder.config, dtype=to_dtype(_name(decoder.head_VH.dtype)))
    if not (directory / GENERATION_CONFIG).exists():
        _write_json(directory / GENERATION_CONFIG, _generation_defaults(config))
    _write_weights(decoder, directory, shard_bytes)
    _write_json(directory / "config.json", to_published(config))


def to_published_tensors(decoder: Decoder) -> Iterator[tuple[str, Tensor]]:
    """Every tensor under its published name: views of the parameters, in the order of the forward pass."""
    parameters = dict(decoder.named_parameters())
    for piece in pieces(decoder.config):
        yield piece.name, piece.of(parameters[piece.parameter].detach())


def _write_weights(decoder: Decoder, directory: Path, shard_bytes: int) -> None:
    shards = list(_shards(to_published_tensors(decoder), shard_bytes))
    files = _file_names(len(shards))
    for file, shard in zip(files, shards, strict=True):
        tensors = {name: tensor.cpu() for name, tensor in shard}
        save_tensors(tensors, directory / file, metadata={"format": "pt"})
    if len(shards) > 1:
        _write_json(directory / INDEX, _index(files, shards))


Shard = list[tuple[str, Tensor]]


def _shards(tensors: Iterable[tuple[str, Tensor]], shard_bytes: int) -> Iterator[Shard]:
    """Tensors in order, as many to a shard as fit; one larger than a shard has one to itself."""
    shard: Shard = []
    num_bytes = 0
    for name, tensor in tensors:
        if shard and num_bytes + tensor.nbytes > shard_bytes:
            yield shard
            shard, num_bytes = [], 0
        shard.append((name, tensor))
        num_bytes += tensor.nbytes
    yield shard


def _file_names(count: int) -> list[str]:
    if count == 1:
        return [WEIGHTS]
    return [f"model-{i + 1:05}-of-{count:05}.safetensors" for i in range(count)]


def _index(files: Sequence[str], shards: Sequence[Shard]) -> dict[str, Any]:
    weight_map = {name: file for file, shard in zip(files, shards, strict=True) for name, _ in shard}
    total_bytes = sum(tensor.nbytes for shard in shards for _, tensor in shard)
    return {"metadata": {"total_size": total_bytes}, "weight_map": weight_map}


def _generation_defaults(config: ModelConfig) -> dict[str, Any]:
    keys = ("bos_token_id", "eos_token_id", "pad_token_id")
    return {key: value for key, value in to_published(config).items() if key in keys and value is not None}


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def copy_companions(origin: Path, directory: Path) -> None:
    for name in COMPANIONS:
        if (origin / name).exists():
            shutil.copyfile(origin / name, directory / name)


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
