"""Which row starts next: the seam between a data set and a run.

A source chooses rows by their numbers. What it chose becomes part of the run when it is written into the
journal; then, and only then, the source hears of it in `offered`. So its state must be made of what it was
told in `offered` and `scored`, in that order, and of nothing else: after a crash a new source is told the
same again, and goes on exactly where the old one was, also where a choice got lost before it was written.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import accumulate, islice
from typing import Any, Protocol

from dora_rl.core.environment_values import with_environment
from dora_rl.core.errors import UserError
from dora_rl.core.recipe.data import OrderConfig
from dora_rl.core.record import Record
from dora_rl.envs.data.rows import Row
from dora_rl.envs.data.splits import epoch_order


class GroupScore(Record, frozen=True):
    """The result of one group, for the source that chose its row."""

    row: int
    epoch: int
    """How often the group's row had been offered before."""
    version: int
    """The version that generated the group."""
    rewards: tuple[float | None, ...]
    """Reward of each scored member; None where no reward function applied, or one failed."""
    outcome: str
    """`finished` if the group goes into a batch, else why not, such as `filtered: zero variance`."""

    @property
    def is_mixed(self) -> bool:
        """Whether the group's rewards differ, so that there is something to learn from it."""
        return len({reward for reward in self.rewards if reward is not None}) > 1


class PromptSource(Protocol):
    """Chooses the rows that a run starts next, one block after the other."""

    def choose(self, count: int) -> Sequence[int] | None:
        """Up to `count` rows to start next; empty: none for now, ask again; None: none ever again.

        Must not change what it would choose if it were asked again: the choice may get lost.
        """
        ...

    def offered(self, rows: Sequence[int]) -> None:
        """Take note that these rows will start, in this order, behind all that were offered before."""
        ...

    def scored(self, score: GroupScore) -> None:
        """Take note that a group is finished, or was closed."""
        ...


class ShuffledRows:
    """Every row once an epoch, in an order that depends on (seed, epoch) alone; without end."""

    def __init__(self, num_rows: int, *, seed: int) -> None:
        assert num_rows, "a data set has at least one row"
        self._num_rows = num_rows
        self._num_offered = 0
        # A block may begin in one epoch and end in the next.
        self._order = lru_cache(maxsize=2)(lambda epoch: epoch_order(num_rows, seed=seed, epoch=epoch))

    def choose(self, count: int) -> Sequence[int] | None:
        places = range(self._num_offered, self._num_offered + count)
        return [self._order(place // self._num_rows)[place % self._num_rows] for place in places]

    def offered(self, rows: Sequence[int]) -> None:
        self._num_offered += len(rows)

    def scored(self, score: GroupScore) -> None:
        """Ignored: the order does not depend on scores."""


class RowsInOrder:
    """The rows in the order of their numbers, `epochs` times or without end."""

    def __init__(self, num_rows: int, *, epochs: int | None = None) -> None:
        assert num_rows, "a data set has at least one row"
        self._num_rows = num_rows
        self._end = None if epochs is None else epochs * num_rows
        self._num_offered = 0

    def choose(self, count: int) -> Sequence[int] | None:
        first = self._num_offered
        if first == self._end:
            return None
        last = first + count if self._end is None else min(first + count, self._end)
        return [place % self._num_rows for place in range(first, last)]

    def offered(self, rows: Sequence[int]) -> None:
        self._num_offered += len(rows)

    def scored(self, score: GroupScore) -> None:
        """Ignored: the order does not depend on scores."""


class WeightedParts:
    """Several sources of one table each, in turn: of any number of rows each has its weight's share.

    Rows are numbered through, those of the first table first. When one of the sources has no more, neither
    have all.
    """

    def __init__(
        self, parts: Sequence[PromptSource], part_rows: Sequence[int], weights: Sequence[float]
    ) -> None:
        """`part_rows` is the number of rows of each table."""
        self._parts = parts
        self._firsts = [0, *accumulate(part_rows)][:-1]
        self._shares = [weight / sum(weights) for weight in weights]
        self._num_offered = [0] * len(parts)

    def choose(self, count: int) -> Sequence[int] | None:
        turns = self._turns(count)
        chosen = [iter(part.choose(turns.count(i)) or ()) for i, part in enumerate(self._parts)]
        rows: list[int] = []
        for i in turns:
            row = next(chosen[i], None)
            if row is None:
                break
            rows.append(self._firsts[i] + row)
        return rows or None

    def _turns(self, count: int) -> list[int]:
        """Whose turn it is, `count` times: always that of the source farthest behind its share."""
        taken, turns = list(self._num_offered), list[int]()
        for place in range(sum(taken) + 1, sum(taken) + count + 1):
            lags = [share * place - num for share, num in zip(self._shares, taken, strict=True)]
            turns.append(lags.index(max(lags)))
            taken[turns[-1]] += 1
        return turns

    def offered(self, rows: Sequence[int]) -> None:
        for row in rows:
            i = bisect_right(self._firsts, row) - 1
            self._num_offered[i] += 1
            self._parts[i].offered([row - self._firsts[i]])

    def scored(self, score: GroupScore) -> None:
        """Ignored: the order does not depend on scores."""


class IteratedRows:
    """The row numbers that a user's function yields, in order; called again, it must yield the same."""

    def __init__(self, rows: Iterable[int]) -> None:
        self._rows: Iterator[int] = iter(rows)
        self._ahead: list[int] = []

    def choose(self, count: int) -> Sequence[int] | None:
        self._ahead += islice(self._rows, max(0, count - len(self._ahead)))
        return self._ahead[:count] or None

    def offered(self, rows: Sequence[int]) -> None:
        self.choose(len(rows))
        if self._ahead[: len(rows)] != list(rows):
            raise UserError(
                "the order of the rows is another one than before the run was resumed",
                hint="yield the same rows for the same seed, or write a class with choose and offered",
            )
        del self._ahead[: len(rows)]

    def scored(self, score: GroupScore) -> None:
        """Ignored: a function that yields rows does not see scores."""


def built_in_source(order: OrderConfig, num_rows: int, *, seed: int) -> PromptSource:
    """The source of a built-in order of rows."""
    if order.name == "in_order":
        return RowsInOrder(num_rows, **order.options)
    return ShuffledRows(num_rows, seed=seed)


def make_source(
    made: Callable[..., Any], rows: Sequence[Row], *, seed: int, options: Mapping[str, Any]
) -> PromptSource:
    """The source that a user's class or function makes: an object that chooses, or row numbers in order."""
    source = made(rows, seed=seed, **with_environment(options, "the order of the rows"))
    if all(callable(getattr(source, name, None)) for name in ("choose", "offered", "scored")):
        chosen: PromptSource = source
        return chosen
    if isinstance(source, Iterable):
        return IteratedRows(source)
    raise UserError(
        f"{made!r} is no source of prompts: it gave {type(source).__name__}",
        hint="give an object with choose, offered and scored, or yield row numbers",
    )
