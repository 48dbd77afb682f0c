"""Rows of Hugging Face data sets, through the package `datasets` where it is installed."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from dora_rl.core.errors import UserError
from dora_rl.core.named import did_you_mean, optional_module

_SAVED = ("dataset_info.json", "dataset_dict.json")
"""Files of which a directory that `save_to_disk` wrote has one: of a Dataset, of a DatasetDict."""


def read_hub(name: str, subset: str | None, split: str, *, stream: bool = False) -> Iterable[dict[str, Any]]:
    """The raw rows of one split of a Hugging Face data set, in its order; a stream loads as it is read."""
    datasets = optional_module(
        "datasets", needed_for=f"the Hugging Face data set '{name}'", install="datasets"
    )
    options = {"streaming": True} if stream else {}
    try:
        rows: Iterable[dict[str, Any]] = datasets.load_dataset(name, subset, split=split, **options)
    except Exception as error:  # network, names, builders: the package raises of every kind
        raise UserError(
            f"the data set '{name}' cannot be loaded: {error}",
            hint="check its name, 'subset' and 'split'; a local .jsonl or .parquet needs no network",
        ) from error
    return rows


def is_saved(directory: Path) -> bool:
    """Whether a directory is one that the package `datasets` wrote with `save_to_disk`."""
    return any((directory / name).is_file() for name in _SAVED)


def read_saved(directory: Path, split: str) -> Iterable[dict[str, Any]]:
    """The raw rows of a data set that `save_to_disk` wrote: all of a Dataset, one split of a DatasetDict."""
    datasets = optional_module("datasets", needed_for=f"reading {directory}", install="datasets")
    try:
        found = datasets.load_from_disk(str(directory))
    except Exception as error:  # whatever is damaged: the package raises of every kind
        raise UserError(f"{directory} cannot be read: {error}", hint="save it anew: save_to_disk") from error
    is_one = not isinstance(found, datasets.DatasetDict)
    if not is_one and split not in found:
        raise UserError(
            f"{directory} has no split '{split}'",
            hint=did_you_mean(split, list(found), "set split to one of"),
        )
    rows: Iterable[dict[str, Any]] = found if is_one else found[split]
    return rows
