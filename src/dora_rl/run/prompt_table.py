"""The prompts of a run: rows to train on, rows held out, and their token ids, in one file of the run.

Rows are numbered through: those to train on first, then those held out, then those of a stream that are read
while the run is going, which the journal has. So a number names a row wherever control, the journal or a
request speaks of one.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar, overload

import msgspec

from dora_rl.core.errors import ConfigError
from dora_rl.core.inputs import QueuedPrompt
from dora_rl.core.recipe import Recipe
from dora_rl.core.record import Record
from dora_rl.envs.data.rows import SOURCE_COLUMN
from dora_rl.envs.tokenized_prompts import TokenizedPrompt
from dora_rl.run.run_setup import RunSetup
from dora_rl.store.journal import Journal
from dora_rl.store.journal_records import StreamedRow

_Table = TypeVar("_Table")


class NumberedPrompts(Protocol):
    """Prompts by the numbers of their rows."""

    def __getitem__(self, row: int) -> TokenizedPrompt: ...


class PromptTable(Record, frozen=True):
    """All the prompts of a run."""

    train: tuple[TokenizedPrompt, ...]
    held_out: tuple[TokenizedPrompt, ...]
    stop_tokens: tuple[int, ...]
    """Token ids that end a completion of this model."""
    num_overlong: int = 0
    """Rows to train on that were left out because their prompts are too long."""
    num_overlong_held_out: int = 0
    """Held-out rows that were left out because their prompts are too long."""
    part_rows: tuple[int, ...] = ()
    """Where rows are of several tables, how many of `train` are of each, in order; else empty."""
    num_read: int = 0
    """Of a stream, how many rows were read before the run: those to train on are of them."""

    @property
    def all_rows(self) -> tuple[TokenizedPrompt, ...]:
        """Rows to train on, then those held out."""
        return (*self.train, *self.held_out)

    def __getitem__(self, row: int) -> TokenizedPrompt:
        num_train = len(self.train)
        return self.train[row] if row < num_train else self.held_out[row - num_train]

    def evaluated(self, most: int | None, samples: int = 1) -> tuple[QueuedPrompt, ...]:
        """The first held-out rows, or all of them, as control knows them; a row once for each sample.

        The samples of a row are of different epochs, which key their draws.
        """
        return tuple(
            QueuedPrompt(epoch=sample, row=row, tokens=len(prompt.token_ids))
            for row, prompt in enumerate(self.held_out[:most], start=len(self.train))
            for sample in range(samples)
        )

    def write(self, path: Path) -> None:
        path.write_bytes(msgspec.msgpack.encode(self))

    @classmethod
    def read(cls, path: Path) -> "PromptTable":
        """Read what `write` wrote; a ConfigError where the file is missing or damaged."""
        return _read(path, cls)


class PromptCounts(msgspec.Struct, frozen=True, kw_only=True):
    """How many prompts a run has, and how many were too long for it. Reads no row."""

    train: list[msgspec.Raw]
    held_out: list[msgspec.Raw]
    num_overlong: int = 0
    num_overlong_held_out: int = 0

    @classmethod
    def read(cls, path: Path) -> "PromptCounts":
        """Read the counts from the file of a prompt table; a ConfigError where it is missing or damaged."""
        return _read(path, cls)


def _read(path: Path, kind: type[_Table]) -> _Table:
    try:
        return msgspec.msgpack.decode(path.read_bytes(), type=kind)
    except (OSError, UnicodeDecodeError, msgspec.DecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise ConfigError(
            f"the prompts of the run cannot be read from {path}: {reason}",
            hint="put the file back from a copy, or start another run from a checkpoint of this one",
        ) from error


class RunPrompts:
    """The prompts of a run by their numbers: those of its table, and those of a stream behind them.

    A streamed prompt is kept here until its group has ended; the journal has it from its offer on, until a
    checkpoint covers its batch.
    """

    def __init__(self, table: PromptTable, journal: Journal) -> None:
        self.table = table
        self._journal = journal
        self._num_known = len(table.train) + len(table.held_out)
        self._streamed: dict[int, TokenizedPrompt] = {}

    @property
    def num_rows(self) -> int | None:
        """How many rows there are to train on; None where they are a stream."""
        return None if self.table.num_read else len(self.table.train)

    def __getitem__(self, row: int) -> TokenizedPrompt:
        if row < self._num_known:
            return self.table[row]
        if (kept := self._streamed.get(row)) is not None:
            return kept
        # Not kept: when a group that has ended is taken, its row is looked at, and nobody forgets it then.
        return msgspec.msgpack.decode(self._journal.streamed_row(row), type=TokenizedPrompt)

    def add(self, prompt: TokenizedPrompt) -> StreamedRow:
        """Take in a prompt of a stream; what is returned must be journalled with its offer."""
        row = self.number(prompt.row.row)
        self._streamed[row] = prompt
        return StreamedRow(row=row, content=msgspec.msgpack.encode(prompt))

    def forget(self, row: int) -> None:
        """Drop a streamed prompt whose group has ended."""
        self._streamed.pop(row, None)

    def data_source(self, row: int) -> Any:
        """What a row says about the table it is of; None where it says nothing."""
        return self[row].row.columns.get(SOURCE_COLUMN)

    def number(self, place: int) -> int:
        """The number of the row at a place of the stream that was not read before the run."""
        return self._num_known + place - self.table.num_read

    def place(self, row: int) -> int:
        """The place in the stream of the row with this number."""
        is_known = row < self._num_known
        return self.table[row].row.row if is_known else row - self._num_known + self.table.num_read


class PromptLengths(Sequence[int]):
    """The length of each training prompt in tokens, by row; held-out rows come behind its end."""

    def __init__(self, table: PromptTable) -> None:
        self._num_train = len(table.train)
        self._lengths = [len(prompt.token_ids) for prompt in (*table.train, *table.held_out)]

    def __len__(self) -> int:
        return self._num_train

    @overload
    def __getitem__(self, row: int) -> int: ...

    @overload
    def __getitem__(self, row: slice) -> list[int]: ...

    def __getitem__(self, row: int | slice) -> int | list[int]:
        return self._lengths[row]


def longest_prompt(table: PromptTable, recipe: Recipe) -> int:
    """Tokens of the longest prompt that the run may meet; of episodes, of what a last turn comes behind."""
    if recipe.episode is not None:
        assert recipe.response.max_new_tokens is not None, "a completed recipe says how long a turn may be"
        return max(1, recipe.episode.max_context_tokens - recipe.response.max_new_tokens)
    longest, data = max(len(prompt.token_ids) for prompt in table.all_rows), recipe.data
    is_stream = data is not None and data.train.stream
    return max(longest, data.max_prompt_tokens or 0) if data is not None and is_stream else longest


def check_lengths(table: PromptTable, setup: RunSetup) -> None:
    """Refuse prompts that an engine would refuse later."""
    longest = longest_prompt(table, setup.recipe)
    limits, needed = setup.engine.limits, longest + setup.max_new_tokens
    if needed > limits.max_positions or limits.blocks_for(needed) > limits.num_blocks:
        raise ConfigError(
            f"a prompt of {longest} tokens and max_new_tokens = {setup.max_new_tokens} need {needed}; "
            f"the engine takes {min(limits.max_positions, limits.num_blocks * limits.block_size)}",
            hint="lower max_new_tokens or data.max_prompt_tokens, or raise the engine's limits",
        )
