"""Rows of Hugging Face data sets, through the package `datasets` where it is installed."""

from collections.abc import Iterable
from typing import Any

from dora_rl.core.errors import UserError
from dora_rl.core.named import optional_module


def read_hub(name: str, subset: str | None, split: str) -> Iterable[dict[str, Any]]:
    """The raw rows of one split of a Hugging Face data set, in its order."""
    datasets = optional_module(
        "datasets", needed_for=f"the Hugging Face data set '{name}'", install="datasets"
    )
    try:
        rows: Iterable[dict[str, Any]] = datasets.load_dataset(name, subset, split=split)
    except Exception as error:  # network, names, builders: the package raises of every kind
        raise UserError(
            f"the data set '{name}' cannot be loaded: {error}",
            hint="check its name, 'subset' and 'split'; a local .jsonl or .parquet needs no network",
        ) from error
    return rows
