"""How long the responses to each row were: rows come again in later epochs, and long ones tend to stay long.

Averages of logarithms: one answer of sixteen that runs to the cap says little about the row.
"""

from collections.abc import Iterable
from math import log

_REMEMBERED = 1 << 18
"""Rows that are remembered: those of a stream never come again."""
_LEAST_WEIGHT = 1.0 / 64
"""Weight of the newest response: what a row's responses were many versions ago fades."""


class RowLengths:
    """The mean logarithm of the lengths of each row's responses, learned from those that ended."""

    def __init__(self) -> None:
        self._seen: dict[int, tuple[int, float]] = {}
        self._all = 0.0
        self._num_all = 0

    def observe(self, row: int, tokens: int) -> None:
        """Learn that a response to `row` ended after `tokens`."""
        value = log(max(1, tokens))
        count, mean = self._seen.get(row, (0, 0.0))
        self._seen[row] = (count + 1, mean + max(_LEAST_WEIGHT, 1.0 / (count + 1)) * (value - mean))
        self._num_all += 1
        self._all += max(1e-4, 1.0 / self._num_all) * (value - self._all)
        if len(self._seen) > _REMEMBERED:
            del self._seen[next(iter(self._seen))]

    def knows_any_of(self, rows: Iterable[int]) -> bool:
        """Whether any of these rows was answered before."""
        return any(row in self._seen for row in rows)

    def expected(self, row: int) -> float:
        """Mean logarithm of the lengths expected for a row: of all where it was never answered."""
        return self._seen[row][1] if row in self._seen else self._all
