"""Text to token ids and back, and the ids that end a completion, from a Hugging Face directory.

Local files only; code that comes with a model is never run.
"""

import json
from pathlib import Path
from typing import TYPE_CHECKING

from dora_rl.core.errors import ModelError
from dora_rl.model.hub_config import as_ids

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerBase

_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "spiece.model", "tekken.json")
"""Files of which one must be there: each holds a tokenizer's vocabulary."""
_FROM = "copy tokenizer.json and tokenizer_config.json from the model it was made from"


def load_tokenizer(directory: Path) -> "PreTrainedTokenizerBase":
    """Load the tokenizer, with its chat template where it has one."""
    # Here, not above: it takes seconds to import, and most of what is in this file does not need it.
    from transformers import AutoTokenizer

    if not directory.is_dir():
        # Otherwise the path would be taken for the name of a model elsewhere.
        raise ModelError(
            f"{directory} is not a directory", hint="a tokenizer is loaded from a model directory"
        )
    if not any((directory / name).is_file() for name in _FILES):
        # The library would make an empty one, to which no text has tokens.
        raise ModelError(
            f"no tokenizer can be loaded from {directory}: it has neither tokenizer.json nor a vocabulary",
            hint=_FROM,
        )
    try:
        return AutoTokenizer.from_pretrained(str(directory), local_files_only=True, trust_remote_code=False)
    except Exception as error:
        # Of a damaged file the library raises whatever comes up, bare Exceptions among it.
        reason = str(error).strip().partition("\n")[0]
        raise ModelError(
            f"no tokenizer can be loaded from {directory}: {type(error).__name__}: {reason:.200}", hint=_FROM
        ) from error


def open_tokenizer(file: Path) -> "Tokenizer":
    """The tokenizer in a `tokenizer.json` of a run; a ModelError where it is missing or damaged."""
    from tokenizers import Tokenizer

    try:
        return Tokenizer.from_file(str(file))
    except Exception as error:
        # The library raises bare Exceptions.
        raise ModelError(
            f"{file} is no tokenizer: {error!s:.200}",
            hint="copy tokenizer.json from the model that the run began with",
        ) from error


def save_tokenizer(tokenizer: "PreTrainedTokenizerBase", directory: Path) -> None:
    """Write a tokenizer made here beside its model."""
    tokenizer.save_pretrained(str(directory))
    path = directory / "tokenizer_config.json"
    settings = json.loads(path.read_text(encoding="utf-8"))
    # transformers 5 writes a class that only itself knows, and reads the older name just as well.
    settings["tokenizer_class"] = "PreTrainedTokenizerFast"
    path.write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")


def load_eos_ids(directory: Path) -> frozenset[int]:
    """Every token that ends a completion: what the generation defaults say, else the model's configuration.

    The generation defaults win because chat models end a turn with a token their configuration may not name.
    """
    for file in ("generation_config.json", "config.json"):
        ids = _eos_ids(directory / file)
        if ids:
            return ids
    raise ModelError(
        f"{directory} names no token that ends a completion",
        hint="set eos_token_id in generation_config.json",
    )


def _eos_ids(path: Path) -> frozenset[int]:
    if not path.exists():
        return frozenset()
    try:
        return frozenset(as_ids(json.loads(path.read_text(encoding="utf-8")).get("eos_token_id")))
    except (ValueError, AttributeError, TypeError) as error:
        raise ModelError(f"{path} cannot be read: {error}") from error
