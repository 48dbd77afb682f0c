"""What followed the same tokens before: the texts of one prompt, searched by their ends.

Texts are those of a group's members and of the prompt's earlier epochs, growing or ended. Every run of three
tokens is noted with the place behind it and chained to where it was before, as compressors do; so the longest
match is looked for among the last few places, and a long text takes no longer than a short one.
"""

from array import array
from collections.abc import Sequence as Tokens
from dataclasses import dataclass, field

_RUN = 3
"""Tokens of the shortest match."""
LONGEST_MATCH = 32
"""Most tokens compared: a longer match says no more."""
_CHAIN = 8
"""Most places looked at for one match."""

Place = tuple[int, int]
"""The number of a text, and the position in it behind a run."""


@dataclass(slots=True)
class _Text:
    tokens: Tokens[int]
    first: int
    """The position before the first that is noted."""
    is_over: bool = False
    before: list[Place | None] = field(default_factory=list)
    """For each noted position, the place where the run that ends there was before."""

    @property
    def num_noted(self) -> int:
        """Positions up to which runs are noted."""
        return self.first + len(self.before)


@dataclass(frozen=True, slots=True, kw_only=True)
class Match:
    """The tokens that followed an earlier occurrence of the last `length` tokens of a text."""

    length: int
    following: tuple[int, ...]


class TextIndex:
    """The texts of one prompt, and where each run of tokens occurred last in them."""

    def __init__(self) -> None:
        self._texts: list[_Text] = []
        self._last: dict[tuple[int, ...], Place] = {}
        self._unnoted: list[int] = []
        """Texts that grow, or were not noted to their end."""
        self.num_growing = 0
        self.num_kept = 0
        """Number of tokens of texts that ended."""

    def add(self, tokens: list[int], num_prompt: int) -> int:
        """Take in a text that grows in this list; return its number."""
        # The prompt is noted once, with the first text behind it.
        self._texts.append(_Text(tokens, first=max(_RUN - 1, num_prompt if self._texts else 0)))
        self._unnoted.append(len(self._texts) - 1)
        self.num_growing += 1
        return len(self._texts) - 1

    def end(self, number: int) -> None:
        """Keep a text that does not grow any more."""
        text = self._texts[number]
        text.tokens, text.is_over = array("i", text.tokens), True
        self.num_growing -= 1
        self.num_kept += len(text.tokens)

    def note(self, most: int) -> None:
        """Take tokens that came since the last call into the index, at most so many."""
        for number in list(self._unnoted):
            text = self._texts[number]
            end = min(len(text.tokens), text.num_noted + most)
            for position in range(text.num_noted + 1, end + 1):
                run = tuple(text.tokens[position - _RUN : position])
                text.before.append(self._last.get(run))
                self._last[run] = number, position
                most -= 1
            if text.is_over and end == len(text.tokens):
                self._unnoted.remove(number)

    def match(self, number: int, most: int) -> Match | None:
        """What followed the longest match of a text's end, at most so many tokens; None without a match."""
        tokens = self._texts[number].tokens
        best_length, best = 0, None
        place = self._last.get(tuple(tokens[-_RUN:]))
        for _ in range(_CHAIN):
            if place is None or best_length >= LONGEST_MATCH:
                break
            found, position = self._texts[place[0]], place[1]
            length = _match_length(tokens, found.tokens, position)
            if position < len(found.tokens) and length > best_length:
                best_length, best = length, place
            place = found.before[position - found.first - 1]
        if best is None:
            return None
        return Match(length=best_length, following=self._following(best, number, most))

    def _following(self, place: Place, own: int, most: int) -> tuple[int, ...]:
        """The tokens behind a place; a text that matches itself is taken to go on repeating itself."""
        number, position = place
        following = list(self._texts[number].tokens[position : position + most])
        period = len(following)
        while number == own and len(following) < most:
            following.append(following[-period])
        return tuple(following)


def _match_length(tokens: Tokens[int], others: Tokens[int], position: int) -> int:
    """How many of the last tokens equal those before a position."""
    length, most = 0, min(LONGEST_MATCH, len(tokens), position)
    while length < most and tokens[-1 - length] == others[position - 1 - length]:
        length += 1
    return length
