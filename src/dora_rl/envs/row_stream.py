"""A stream of rows: read as it is needed, in its own order, perhaps without end.

A row's number is its place in the stream. A stream that is opened again goes on at a place: it must give the
same rows in the same order when it is asked for them a second time, or have a method `skip(count)` that
returns what comes behind the first `count`, as the package `datasets` has it.

| the stream yields | it means                                  |
|-------------------|-------------------------------------------|
| a mapping         | the next row                              |
| None              | there is none at the moment; asked again  |
| nothing more      | the rows have ended, and so does the run  |
"""

import time
from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from typing import Any

from dora_rl.core.errors import UserError
from dora_rl.core.named import Objects
from dora_rl.core.recipe.data import DataConfig, TableConfig
from dora_rl.envs.data.rows import Row, check_renaming, read_row, with_all_columns
from dora_rl.envs.data.sources import Data, RawRows, Tables, load_rows, open_stream
from dora_rl.envs.prompt_source import GroupScore

_ASK_AGAIN_S = 0.2
_SKIP_AGAIN_S = 0.01
"""Seconds until a stream that had no row is asked again for one that it gave before."""
_ALIVE_EVERY = 256
"""Rows that are skipped between two signs of life."""


class StreamEnd(Enum):
    """The word for a stream that has no more rows."""

    ENDED = "ended"


ENDED = StreamEnd.ENDED


class RowStream:
    """The rows of one source, one by one, from any place on."""

    def __init__(self, config: TableConfig, *, seed: int, objects: Objects | None = None) -> None:
        self._config = config
        self._rows: RawRows = open_stream(config, seed, objects)
        self._iterator: Iterator[Mapping[str, Any] | None] | None = None
        self.place = 0
        """Place of the row that is read next."""

    @property
    def hears_scores(self) -> bool:
        """Whether the stream has a method `scored` that wants to know what came of its rows."""
        return callable(getattr(self._rows, "scored", None))

    def scored(self, score: GroupScore) -> None:
        """Tell a stream that hears scores what came of the group of a row; `score.row` is its place."""
        rows: Any = self._rows
        rows.scored(score)

    def skip_to(self, place: int, alive: Callable[[], None] = lambda: None) -> None:
        """Go on at a place; `alive` is called now and then where the rows before it have to be read."""
        skip = getattr(self._rows, "skip", None)
        if self._iterator is None and callable(skip) and not self.hears_scores:
            self._rows, self.place = skip(place), place
        while self.place < place:
            raw = self.read_raw()
            if raw is ENDED:
                raise UserError(
                    f"the stream '{self._config.name}' has {self.place:,} rows, and {place:,} were read",
                    hint="opened again, it must give the same rows, or have a method skip(count)",
                )
            if raw is None:
                time.sleep(_SKIP_AGAIN_S)
            if raw is None or self.place % _ALIVE_EVERY == 0:
                alive()

    def read_raw(self) -> Mapping[str, Any] | StreamEnd | None:
        """The next row as the stream has it, None where there is none at the moment."""
        if self._iterator is None:
            self._iterator = iter(self._rows)
        raw = next(self._iterator, ENDED)
        if raw is not None and raw is not ENDED:
            self.place += 1
        return raw

    def read(self) -> Row | StreamEnd | None:
        """The next row, None where there is none at the moment."""
        raw = self.read_raw()
        if raw is None or isinstance(raw, StreamEnd):
            return raw
        return read_row(raw, self._config.columns, self.place - 1, self._config.name)


def load_stream_start(
    config: DataConfig, count: int, *, tables: Tables | None = None, objects: Objects | None = None
) -> Data:
    """The first rows of a stream, with which a run is planned and begins, and the held-out rows."""
    stream, raws = RowStream(config.train, seed=config.seed, objects=objects), list[Mapping[str, Any]]()
    while len(raws) < count:
        raw = stream.read_raw()
        if isinstance(raw, StreamEnd):
            raise UserError(
                f"the stream '{config.train.name}' ended after {len(raws)} rows, and a batch takes {count}",
                hint=f"set batch.groups to {len(raws)} or less, or give more rows"
                if raws
                else "give it rows",
            )
        if raw is None:
            time.sleep(_ASK_AGAIN_S)
        else:
            raws.append(raw)
    check_renaming(raws, config.train.columns, config.train.name)
    rows = [read_row(raw, config.train.columns, i, config.train.name) for i, raw in enumerate(raws)]
    held_out = load_rows(config.held_out, config.seed, tables) if config.held_out is not None else []
    train, held_out = with_all_columns(rows, held_out)
    return Data(train=train, held_out=held_out, task=None, num_read=stream.place)
