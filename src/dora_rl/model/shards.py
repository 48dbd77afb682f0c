"""The weight files of a Hugging Face directory: one safetensors file, or shards and their index.

Knows files and tensor names, not models. Only safetensors are opened: other formats can run code.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import Tensor

from dora_rl.core.errors import ModelError

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"


def published_tensors(directory: Path) -> Iterator[tuple[str, Tensor]]:
    """Every tensor of the directory with its name; one at a time is in memory, each file is opened once."""
    for path, promised in _promises(directory).items():
        with _open(path) as shard:
            for name in promised.difference(shard.keys()):
                raise ModelError(f"{path} lacks tensor '{name}', which {INDEX} promises", hint=_COPY_AGAIN)
            for name in sorted(shard.keys()):
                yield name, shard.get_tensor(name)


def published_shapes(directory: Path) -> Iterator[tuple[str, tuple[int, ...], str]]:
    """The name, shape and dtype of every tensor of the directory, from the heads of its files."""
    for path, promised in _promises(directory).items():
        with _open(path) as shard:
            for name in promised.difference(shard.keys()):
                raise ModelError(f"{path} lacks tensor '{name}', which {INDEX} promises", hint=_COPY_AGAIN)
            for name in sorted(shard.keys()):
                view = shard.get_slice(name)
                yield name, tuple(view.get_shape()), view.get_dtype()


def _promises(directory: Path) -> dict[Path, set[str]]:
    """The files to read, each with the tensors it must hold; without an index, none is known beforehand."""
    if (directory / INDEX).exists():
        promises: dict[Path, set[str]] = {}
        for name, file in sorted(_weight_map(directory / INDEX).items()):
            promises.setdefault(directory / file, set()).add(name)
        return promises
    if (directory / WEIGHTS).exists():
        return {directory / WEIGHTS: set()}
    hint = f"expected {WEIGHTS} or {INDEX}"
    if any(directory.glob("*.bin")):
        hint = "it holds pickled weights, which can run code when opened: convert them to safetensors"
    raise ModelError(f"{directory} has no safetensors weights", hint=hint)


def _weight_map(path: Path) -> dict[str, str]:
    try:
        weight_map = json.loads(path.read_text(encoding="utf-8"))["weight_map"]
    except (ValueError, KeyError, TypeError) as error:
        raise ModelError(f"{path} is not an index of safetensors files", hint=_COPY_AGAIN) from error
    if not isinstance(weight_map, dict) or any(not _is_file_name(file) for file in weight_map.values()):
        raise ModelError(f"{path} does not map tensors to files beside it", hint=_COPY_AGAIN)
    return weight_map


def _is_file_name(file: object) -> bool:
    return isinstance(file, str) and Path(file).name == file


def _open(path: Path) -> Any:
    try:
        return safe_open(path, framework="pt")
    except FileNotFoundError as error:
        raise ModelError(f"{path} is missing", hint=_COPY_AGAIN) from error
    except (SafetensorError, OSError) as error:
        raise ModelError(f"{path} is damaged: {error}", hint=_COPY_AGAIN) from error


_COPY_AGAIN = "copy or download the directory again"
