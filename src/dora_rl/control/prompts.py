"""Prompts in epochs: which row starts next.

The order of an epoch is a seeded shuffle that depends on (seed, epoch) alone, so a position in the
stream is two numbers and can be resumed. Queued prompts have no version: waiting does not age them.
"""

import random
from collections.abc import Sequence

from dora_rl.core.record import Record


class Prompt(Record, frozen=True):
    epoch: int
    row: int
    tokens: int


class Prompts:
    """An endless, seeded stream of prompts over the rows of a data set."""

    def __init__(self, *, tokens: Sequence[int], seed: int) -> None:
        assert tokens, "a data set has at least one row"
        self._tokens = tokens
        self._seed = seed
        self.epoch = 0
        self.position = 0
        self._order = self._shuffled(0)

    def peek(self) -> Prompt:
        """The prompt that starts next."""
        if self.position == len(self._order):
            self.seek(self.epoch + 1, 0)
        row = self._order[self.position]
        return Prompt(epoch=self.epoch, row=row, tokens=self._tokens[row])

    def next(self) -> Prompt:
        prompt = self.peek()
        self.position += 1
        return prompt

    def at(self, row: int) -> Prompt:
        """A given row, outside the stream."""
        return Prompt(epoch=0, row=row, tokens=self._tokens[row])

    def seek(self, epoch: int, position: int) -> None:
        """Go on from a recorded place in the stream."""
        self.epoch, self.position = epoch, position
        self._order = self._shuffled(epoch)

    def _shuffled(self, epoch: int) -> list[int]:
        order = list(range(len(self._tokens)))
        random.Random(f"prompts {self._seed} {epoch}").shuffle(order)
        return order
