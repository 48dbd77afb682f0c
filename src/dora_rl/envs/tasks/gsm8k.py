"""`gsm8k`: grade-school word problems with columns `question` and `answer`, from a file or a data set."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from dora_rl.core.errors import UserError
from dora_rl.core.recipe.data import RewardConfig
from dora_rl.envs.data.hub import read_hub
from dora_rl.envs.data.row_files import READERS, read_file
from dora_rl.envs.data.rows import Row, read_rows
from dora_rl.envs.data.splits import held_out
from dora_rl.envs.tasks.task import Task

_INSTRUCTION = "Think step by step, then give the final number after ####."
_HELD_OUT_SHARE = 0.05


def gsm8k(
    *,
    seed: int,
    path: str,
    held_out_path: str | None = None,
    held_out_share: float | None = None,
    subset: str | None = "main",
    split: str = "train",
    held_out_split: str = "test",
    instruction: str = _INSTRUCTION,
) -> Task:
    """The task `gsm8k`; `path` is a file, or a data set as `owner/name`, `hf:name` or a directory.

    Held out: another file or data set, else a seeded share where one is given or there is only a file, else
    the data set's own split.
    """

    def read(place: str, part: str) -> list[Row]:
        return read_rows(_table(_raw(place, subset, part), place, instruction), {}, place)

    rows = read(path, split)
    if held_out_path is not None:
        train, kept = rows, read(held_out_path, held_out_split)
    elif held_out_share is None and not _is_file(path):
        train, kept = rows, read(path, held_out_split)
    else:
        share = _HELD_OUT_SHARE if held_out_share is None else held_out_share
        train, kept = held_out(rows, share=share, seed=seed)
    return Task(
        name="gsm8k",
        train=train,
        held_out=kept,
        rewards=(RewardConfig(function="accuracy_reward"),),
        max_new_tokens=512,
    )


def _is_file(place: str) -> bool:
    """Whether a place is a file of rows, by its ending: a data set has none."""
    return Path(place).suffix in READERS


def _raw(place: str, subset: str | None, split: str) -> Iterable[dict[str, Any]]:
    if _is_file(place):
        return read_file(Path(place))
    if Path(place).is_file():
        raise UserError(f"{place} is no kind of file that holds rows", hint=f"endings: {', '.join(READERS)}")
    if Path(place).is_dir():
        # Files of one's own have no configurations.
        return read_hub(place, None, split)
    if place.startswith("hf:") or "/" in place:
        return read_hub(place.removeprefix("hf:"), subset, split)
    raise UserError(
        f"there is neither a file nor a data set '{place}'",
        hint="give a .jsonl file, or a data set as owner/name: openai/gsm8k",
    )


def _table(rows: Iterable[dict[str, Any]], place: str, instruction: str) -> Iterator[dict[str, Any]]:
    for number, raw in enumerate(rows):
        if not {"question", "answer"} <= raw.keys() or "####" not in str(raw["answer"]):
            raise UserError(
                f"{place}, row {number} has no 'question' and 'answer' with a number after ####",
                hint=f"for other columns use it as the source itself: data.train.name={place}",
            )
        content = f"{raw['question']}\n{instruction}"
        yield {"prompt": [{"role": "user", "content": content}], "solution": raw["answer"]}
