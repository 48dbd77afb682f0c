"""A source's name becomes rows.

In this order: a built-in task; a file, by its ending; `module:object` or `file.py:object`, where the
object is an iterable of rows, a Task, or a function that returns one; a directory; a Hugging Face data set.
Knows no tokenizer.
"""

import inspect
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence, Sized
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from dora_rl.core.environment_values import with_environment
from dora_rl.core.errors import UserError
from dora_rl.core.named import OBJECT, Objects, did_you_mean, load_named
from dora_rl.core.recipe.data import DataConfig, TableConfig
from dora_rl.core.record import Record
from dora_rl.envs.data.hub import is_saved, read_hub, read_saved
from dora_rl.envs.data.row_files import READERS, read_directory, read_file
from dora_rl.envs.data.rows import SOURCE_COLUMN, Row, read_rows, with_all_columns
from dora_rl.envs.data.splits import held_out
from dora_rl.envs.tasks import TASKS, Task, load_task

Tables = Mapping[str, str]
"""Files with rows, by the name that stands for them in a recipe."""
RawRows = Iterable[Mapping[str, Any]]

MOST_UNSIZED = 100_000
"""Most rows that are read whole from something that does not say how many it has."""


class Data(Record, frozen=True):
    """All rows of a run that are known before it: those to train on, and those held out."""

    train: list[Row]
    held_out: list[Row]
    task: Task | None
    """The built-in task the training rows come from: its reward and length are the defaults."""
    part_ends: tuple[int, ...] = ()
    """Of several tables, the number behind the last row of each."""
    num_read: int = 0
    """Of a stream, how many rows of it were read: `train` is made of them."""

    def part_rows(self, config: DataConfig, kept: Sequence[int]) -> tuple[int, ...]:
        """Of several tables, how many of the rows that are kept, by their numbers in order, are of each."""
        places = [bisect_left(kept, end) for end in self.part_ends]
        found = tuple(end - begin for begin, end in pairwise([0, *places]))
        for part, num_rows in zip(config.train.parts, found, strict=True):
            if not num_rows:
                raise UserError(
                    f"no row of '{part.source_label}' is left to train on",
                    hint="raise data.max_prompt_tokens, or lower data.held_out_share",
                )
        return found


def load_data(config: DataConfig, tables: Tables | None = None, *, needs_prompt: bool = True) -> Data:
    """Read the rows of a run and split them; `tables` are files that stand for names of a caller's rows.

    Rows of episodes may have no prompt.
    """
    tables = tables or {}
    task, ends = None, list[int]()
    if config.train.parts:
        rows = list[Row]()
        for part in config.train.parts:
            read = load_rows(part, config.seed, tables, needs_prompt=needs_prompt)
            rows += [_labelled(row, len(rows), part.source_label) for row in read]
            ends.append(len(rows))
    else:
        found = _found(config.train, config.seed, tables)
        task = found if isinstance(found, Task) else None
        rows = _rows(found, config.train, needs_prompt)
    train, evaluation = held_out(rows, share=config.held_out_share, seed=config.seed)
    if config.held_out is not None:
        evaluation = load_rows(config.held_out, config.seed, tables, needs_prompt=needs_prompt)
    elif task is not None and not config.held_out_share:
        evaluation = task.held_out
    # A reward gets every column by name, whichever row it judges.
    train, evaluation = with_all_columns(train, evaluation)
    return Data(train=train, held_out=evaluation, task=task, part_ends=tuple(ends))


def load_rows(
    config: TableConfig, seed: int, tables: Tables | None = None, *, needs_prompt: bool = True
) -> list[Row]:
    """All rows of one source; of a task, those to train on."""
    return _rows(_found(config, seed, tables or {}), config, needs_prompt)


def open_stream(config: TableConfig, seed: int, objects: Objects | None = None) -> RawRows:
    """The raw rows of a source that is read as it is needed; nothing of it is read yet."""
    name, path = config.name, Path(config.name)
    found: Task | RawRows
    if name.startswith(OBJECT):
        found = _called(load_named(name, objects), config, seed)
    elif _is_hub(name):
        _refuse(config, "a data set", "options")
        return read_hub(name.removeprefix("hf:"), config.subset, config.split, stream=True)
    elif ":" in name or ("." in name and not path.exists() and path.suffix not in READERS):
        found = _called(load_named(name), config, seed)
    else:
        found = _found(config, seed, {})
    if isinstance(found, Task):
        raise UserError(f"the rows of the task '{name}' are known, and no stream", hint="leave 'stream' out")
    return found


def _labelled(row: Row, before: int, label: str) -> Row:
    """A row of one of several tables, numbered behind those of the tables before it."""
    return replace(row, row=before + row.row, columns={SOURCE_COLUMN: label} | row.columns)


def _rows(found: Task | RawRows, config: TableConfig, needs_prompt: bool) -> list[Row]:
    if not isinstance(found, Task):
        return read_rows(found, config.columns, config.name, needs_prompt=needs_prompt)
    if config.columns:
        raise UserError(f"the task '{config.name}' names its own columns", hint="leave 'columns' out")
    return found.train


def _is_hub(name: str) -> bool:
    """Whether a name is that of a Hugging Face data set, and of nothing that is here."""
    is_elsewhere = ":" not in name and "/" in name and not Path(name).exists()
    return name.startswith("hf:") or (is_elsewhere and Path(name).suffix not in READERS)


def _found(config: TableConfig, seed: int, tables: Tables) -> Task | RawRows:
    """The task or the table of raw rows that a source's name stands for."""
    name, path = config.name, Path(config.name)
    if name.partition(":")[0] in TASKS:
        _refuse(config, "a built-in task", "subset", "split")
        return load_task(name, seed=seed, options=with_environment(config.options, f"the data '{name}'"))
    if name in tables:
        _refuse(config, "a table", "options", "subset", "split")
        return read_file(Path(tables[name]))
    if path.suffix in READERS and not path.is_dir():
        _refuse(config, "a file", "options", "subset", "split")
        return read_file(path)
    if _is_hub(name):
        _refuse(config, "a data set", "options")
        return read_hub(name.removeprefix("hf:"), config.subset, config.split)
    if ":" in name:
        return _bounded(_called(load_named(name), config, seed), name)
    if path.is_dir() and is_saved(path):
        _refuse(config, "a saved data set", "options", "subset")
        return read_saved(path, config.split)
    if path.is_dir():
        _refuse(config, "a directory of files", "options", "subset", "split")
        return read_directory(path)
    if path.exists():
        raise UserError(f"{name} is no kind of file that holds rows", hint=f"endings: {', '.join(READERS)}")
    if "." in name:
        return _bounded(_called(load_named(name), config, seed), name)
    raise UserError(f"there is no task '{name}'", hint=did_you_mean(name, list(TASKS), "tasks"))


def _refuse(config: TableConfig, what: str, *keys: str) -> None:
    """Refuse keys that were set and that a table of this kind has no use for."""
    usual = TableConfig(name=config.name)
    for key in keys:
        if (given := getattr(config, key)) != getattr(usual, key):
            raise UserError(
                f"the rows of '{config.name}' are {what}, which has no use for {key} = {given!r}",
                hint=f"leave '{key}' out",
            )


def _called(found: Any, config: TableConfig, seed: int) -> Task | RawRows:
    """A table or a task of the user's own, or one that a function of theirs returns, given the seed."""
    name = config.name
    _refuse(config, "an object of yours", "subset", "split", *(() if callable(found) else ("options",)))
    if callable(found):
        is_seeded = "seed" in inspect.signature(found).parameters
        given = with_environment(config.options, f"the data '{name}'")
        found = found(**({"seed": seed} if is_seeded else {}), **given)
    if not isinstance(found, Iterable | Task):
        raise UserError(
            f"'{name}' is no iterable of rows but {type(found).__name__}",
            hint="name a list of mappings, a Task, or a function that returns one",
        )
    return found


def _bounded(found: Task | RawRows, name: str) -> Task | RawRows:
    return found if isinstance(found, Task) else read_whole(found, f"'{name}'", "set data.train.stream=true")


def read_whole(rows: Iterable[Any], name: str, stream: str) -> Iterable[Any]:
    """The rows, all read where they do not say how many they are: without end they must not be waited for.

    `stream` says how to have them read as they are needed.
    """
    if isinstance(rows, Sized):
        return rows
    read = list(islice(rows, MOST_UNSIZED + 1))
    if len(read) > MOST_UNSIZED:
        raise UserError(
            f"{name} gave {MOST_UNSIZED:,} rows and goes on: without a length, it may have no end",
            hint=f"{stream} to have rows read as they are needed, or give a list of all of them",
        )
    return read
