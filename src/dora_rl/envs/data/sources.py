"""A source's name becomes rows.

In this order: a built-in task; a file, by its ending; `module:object` or `file.py:object`, where the
object is an iterable of rows, a Task, or a function that returns one; a Hugging Face data set. Knows no
tokenizer.
"""

import inspect
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from dora_rl.core.errors import UserError
from dora_rl.core.named import did_you_mean, load_named
from dora_rl.core.recipe.data import DataConfig, SourceConfig
from dora_rl.core.record import Record
from dora_rl.envs.data.hub import read_hub
from dora_rl.envs.data.row_files import READERS, read_file
from dora_rl.envs.data.rows import Row, read_rows, with_all_columns
from dora_rl.envs.data.splits import held_out
from dora_rl.envs.tasks import TASKS, Task, load_task

Tables = Mapping[str, str]
"""Files with rows, by the name that stands for them in a recipe."""


class Data(Record, frozen=True):
    """All rows of a run: those to train on, and those held out."""

    train: list[Row]
    held_out: list[Row]
    task: Task | None
    """The built-in task the training rows come from: its reward and length are the defaults."""


def load_data(config: DataConfig, tables: Tables | None = None) -> Data:
    """Read the rows of a run and split them; `tables` are files that stand for names of a caller's rows."""
    found = _found(config.train, config.seed, tables or {})
    task = found if isinstance(found, Task) else None
    train, evaluation = held_out(_rows(found, config.train), share=config.held_out_share, seed=config.seed)
    if config.held_out is not None:
        evaluation = load_rows(config.held_out, config.seed, tables)
    elif task is not None and not config.held_out_share:
        evaluation = task.held_out
    # A reward gets every column by name, whichever row it judges.
    train, evaluation = with_all_columns(train, evaluation)
    return Data(train=train, held_out=evaluation, task=task)


def load_rows(config: SourceConfig, seed: int, tables: Tables | None = None) -> list[Row]:
    """All rows of one source; of a task, those to train on."""
    return _rows(_found(config, seed, tables or {}), config)


def _rows(found: Task | Iterable[Mapping[str, Any]], config: SourceConfig) -> list[Row]:
    if not isinstance(found, Task):
        return read_rows(found, config.columns, config.name)
    if config.columns:
        raise UserError(f"the task '{config.name}' names its own columns", hint="leave 'columns' out")
    return found.train


def _found(config: SourceConfig, seed: int, tables: Tables) -> Task | Iterable[Mapping[str, Any]]:
    """The task or the table of raw rows that a source's name stands for."""
    name = config.name
    if name.partition(":")[0] in TASKS:
        return load_task(name, seed=seed, options=config.options)
    if name in tables:
        return read_file(Path(tables[name]))
    if Path(name).suffix in READERS:
        return read_file(Path(name))
    if name.startswith("hf:"):
        return read_hub(name.removeprefix("hf:"), config.subset, config.split)
    if ":" in name:
        return _named(name, config.options, seed)
    if Path(name).exists():
        raise UserError(f"{name} is no kind of file that holds rows", hint=f"endings: {', '.join(READERS)}")
    if "/" in name:
        return read_hub(name, config.subset, config.split)
    if "." in name:
        return _named(name, config.options, seed)
    raise UserError(f"there is no task '{name}'", hint=did_you_mean(name, list(TASKS), "tasks"))


def _named(name: str, options: Mapping[str, Any], seed: int) -> Task | Iterable[Mapping[str, Any]]:
    """A table or a task of the user's own, or one that a function of theirs returns, given the seed."""
    found = load_named(name)
    if callable(found):
        is_seeded = "seed" in inspect.signature(found).parameters
        found = found(**({"seed": seed} if is_seeded else {}), **options)
    if not isinstance(found, Iterable | Task):
        raise UserError(
            f"'{name}' is no iterable of rows but {type(found).__name__}",
            hint="name a list of mappings, a Task, or a function that returns one",
        )
    return found
