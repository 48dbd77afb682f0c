"""Sources of prompts that runs of the tests use, in processes of their own."""

import random
import time
from collections.abc import Iterator, Sequence
from itertools import count, islice
from typing import Any

from dora_rl.envs.data.rows import Row
from dora_rl.envs.prompt_source import GroupScore


class LearnableFirst:
    """Prefers rows whose last group had mixed rewards: from the others there was nothing to learn."""

    def __init__(self, rows: Sequence[Row], *, seed: int, new: float = 0.25) -> None:
        """`new` is the share of the choices that go to any row, so that what changes is noticed."""
        self._rows = range(len(rows))
        self._seed = seed
        self._new = new
        self._num_offered = 0
        self._learnable: dict[int, None] = {}

    def choose(self, count: int) -> list[int]:
        # Drawn from what it was told alone: asked again, or after a crash, it chooses the same.
        draw = random.Random(f"{self._seed} {self._num_offered}")
        learnable = list(self._learnable)
        return [
            draw.choice(learnable if learnable and draw.random() >= self._new else self._rows)
            for _ in range(count)
        ]

    def offered(self, rows: Sequence[int]) -> None:
        self._num_offered += len(rows)

    def scored(self, score: GroupScore) -> None:
        if score.is_mixed:
            self._learnable[score.row] = None
        else:
            self._learnable.pop(score.row, None)


class Sequel(LearnableFirst):
    """Chooses by what it was offered and told: the sum of it, so that any difference shows at once."""

    def choose(self, count: int) -> list[int]:
        return [(7 * self._num_offered + len(self._learnable) + i) % len(self._rows) for i in range(count)]


class Raises(LearnableFirst):
    def choose(self, count: int) -> list[int]:
        raise KeyError("difficulty")


class Hangs(LearnableFirst):
    def choose(self, count: int) -> list[int]:
        time.sleep(3600)
        return []


class Beyond(LearnableFirst):
    def choose(self, count: int) -> list[int]:
        return [10_000]


def one_epoch(rows: Sequence[Row], *, seed: int) -> Iterator[int]:
    """Five rows, and no more."""
    yield from range(5)


# --- streams ------------------------------------------------------------------------------------

TEXTS = "0123456789"


def endless(start: int = 0) -> Iterator[dict[str, Any]]:
    """Rows without end; the number of a row is a column."""
    yield from ({"prompt": TEXTS[i % 10] * (1 + i % 3), "number": i} for i in count(start))


def five_rows() -> Iterator[dict[str, Any]]:
    """Five rows that are short enough, and one before the last that is not."""
    yield from islice(endless(), 4)
    yield {"prompt": "0" * 99, "number": -1}
    yield from islice(endless(5), 1)


def halting() -> Iterator[dict[str, Any] | None]:
    """Rows with pauses in between, and then one that never comes."""
    for row in islice(endless(), 3):
        yield None
        yield row
    time.sleep(3600)


def breaking() -> Iterator[dict[str, Any]]:
    yield from islice(endless(), 2)
    yield {"prompt": [{"role": "user"}]}


class Climbing:
    """A stream that hears scores: each that it hears makes the next row harder."""

    def __init__(self) -> None:
        self.level = 0
        self.heard: list[int] = []

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for i in count():
            yield {"prompt": TEXTS[i % 10], "level": self.level}

    def scored(self, score: GroupScore) -> None:
        self.level += 1
        self.heard.append(score.row)
