"""A source's name becomes rows.

In this order: a built-in task; a file, by its ending; `module:object` or `file.py:object`, where the
object is an iterable of rows or a function that returns one; a Hugging Face data set.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from dora_rl.core.errors import UserError
from dora_rl.core.named import did_you_mean, load_named
from dora_rl.core.record import Record
from dora_rl.envs.config import DataConfig, SourceConfig
from dora_rl.envs.data.files import READERS, read_file
from dora_rl.envs.data.hub import read_hub
from dora_rl.envs.data.rows import Row, read_rows, with_all_columns
from dora_rl.envs.data.splits import held_out
from dora_rl.envs.tasks import TASKS, Task, load_task


class Data(Record, frozen=True):
    """What a run goes through."""

    train: list[Row]
    held_out: list[Row]
    task: Task | None
    """The built-in task the training rows come from: its reward and length are the defaults."""


def load_data(config: DataConfig) -> Data:
    """The rows of a run, split."""
    task = _task(config.train, config.seed)
    rows = load_rows(config.train, config.seed) if task is None else task.train
    train, evaluation = held_out(rows, share=config.held_out_share, seed=config.seed)
    if config.held_out is not None:
        evaluation = load_rows(config.held_out, config.seed)
    elif task is not None and not config.held_out_share:
        evaluation = task.held_out
    # A reward gets every column by name, whichever row it judges.
    train, evaluation = with_all_columns(train, evaluation)
    return Data(train=train, held_out=evaluation, task=task)


def load_rows(config: SourceConfig, seed: int) -> list[Row]:
    """All the rows of one source; of a built-in task, those it trains on."""
    task = _task(config, seed)
    return task.train if task is not None else read_rows(_table(config), config.columns, config.name)


def _task(config: SourceConfig, seed: int) -> Task | None:
    family = config.name.partition(":")[0]
    if family not in TASKS:
        return None
    if config.columns:
        raise UserError(
            f"the built-in task '{config.name}' names its own columns", hint="leave 'columns' out"
        )
    return load_task(config.name, seed=seed, options=config.options)


def _table(config: SourceConfig) -> Iterable[Mapping[str, Any]]:
    name = config.name
    if Path(name).suffix in READERS:
        return read_file(Path(name))
    if name.startswith("hf:"):
        return read_hub(name.removeprefix("hf:"), config.subset, config.split)
    if ":" in name:
        return _iterable(name, config.options)
    if Path(name).exists():
        raise UserError(f"{name} is no kind of file that holds rows", hint=f"endings: {', '.join(READERS)}")
    if "/" in name:
        return read_hub(name, config.subset, config.split)
    if "." in name:
        return _iterable(name, config.options)
    raise UserError(f"there is no task '{name}'", hint=did_you_mean(name, list(TASKS), "tasks"))


def _iterable(name: str, options: Mapping[str, Any]) -> Iterable[Mapping[str, Any]]:
    found = load_named(name)
    rows = found(**options) if callable(found) else found
    if not isinstance(rows, Iterable):
        raise UserError(
            f"'{name}' is no iterable of rows but {type(rows).__name__}",
            hint="name a list of mappings, or a function that returns one",
        )
    return rows
