"""Guesses at the next tokens of a request: computed in its next pass, kept where they equal the draws.

A draw is keyed by its position, so tokens are what they would be without guesses. While few requests of a
version decode, a pass takes hardly longer with a few tokens more; but the version's next pass is then planned
only when the answers are there. So guesses have to promise something: how often they came true is counted by
the length of the match that they follow, and says how deep to guess, and whether at all.
"""

from collections import OrderedDict
from collections.abc import Sequence as Ordered
from dataclasses import dataclass

from dora_rl.engines.native.scheduling.sequence import Sequence
from dora_rl.engines.native.scheduling.text_index import LONGEST_MATCH, TextIndex

MAX_ROWS = 16
"""Most requests of a version that decode together while guesses are made."""
MAX_PASS_TOKENS = 64
"""Most tokens of a pass with guesses: a GPU takes hardly longer for so many than for one."""
_LEAST_CHANCE = 0.3
"""Least chance of a guess to be reached and right."""
_LEAST_GAIN = 0.6
"""Least number of right guesses expected a row. On a GPU a pass with guesses takes 1.2 to 1.5 times as long:
it has more tokens, stores their keys before any of them attends, and has nothing launched behind it."""
_PROBE_EVERY = 64
"""How many passes with unpromising matches there are to one that tries them all the same."""
_FADING = 0.97
"""Weight of everything before the newest guess, when counting how often they were right."""
_NOTED_AT_ONCE = 256
"""Most tokens of a prompt's texts indexed before one pass, at a microsecond each."""
_KEPT_TOKENS = 2**18
"""Most tokens of texts kept whose prompt has no live request; those longest unused go first."""


class Odds:
    """How often guesses were right of late."""

    def __init__(self) -> None:
        # Hopeful: what was never tried is tried.
        self._num_right, self._num_tried = 3.0, 4.0

    def count(self, num_guessed: int, num_right: int) -> None:
        """Take in what became of guesses in a row; what follows a wrong one was not tried."""
        self._num_right = _FADING * self._num_right + num_right
        self._num_tried = _FADING * self._num_tried + min(num_guessed, num_right + 1)

    def chances(self, num_ahead: int, most: int) -> list[float]:
        """Chances that guess after guess is reached and right, as long as they are worth it.

        The first `num_ahead` are being drawn already, and not known yet.
        """
        chance = self._num_right / self._num_tried
        every = (chance**place for place in range(num_ahead + 1, num_ahead + most + 1))
        return [each for each in every if each >= _LEAST_CHANCE]


@dataclass(slots=True)
class _Own:
    """The index that a live request's text is in, its number there, and the odds of its last guesses."""

    index: TextIndex
    number: int
    odds: Odds | None = None


@dataclass(frozen=True, slots=True)
class _Offer:
    """Tokens that might follow, how many of them are worth it, and how many of those should be right."""

    tokens: tuple[int, ...] = ()
    depth: int = 0
    gain: float = 0.0


class Speculation:
    """The guesses of one engine: makes them, and learns from what became of them."""

    def __init__(self, most_tokens: int) -> None:
        self._most_tokens = most_tokens
        self._indexes: OrderedDict[tuple[int, ...], TextIndex] = OrderedDict()
        """The index of each prompt, that of the prompt longest unused first."""
        self._live: dict[int, _Own] = {}
        """What is known of each live request, by request."""
        self._num_kept = 0
        self._odds = [Odds() for _ in range(LONGEST_MATCH.bit_length() + 1)]
        """By the number of binary digits of the match's length."""
        self._num_unpromising = 0
        self.num_guessed = 0
        self.num_right = 0

    def begin(self, sequence: Sequence) -> None:
        """Take in the text of a request, which grows from now on."""
        prompt = sequence.request.prompt
        index = self._indexes.setdefault(prompt, TextIndex())
        self._indexes.move_to_end(prompt)
        self._live[sequence.request.id] = _Own(index, index.add(sequence.tokens, len(prompt)))

    def end(self, sequence: Sequence) -> None:
        """Keep the text of a request that is over, as long as there is room."""
        own = self._live.pop(sequence.request.id)
        own.index.end(own.number)
        self._num_kept += len(sequence.tokens)
        while self._num_kept > _KEPT_TOKENS:
            unused = (prompt for prompt, index in self._indexes.items() if not index.num_growing)
            oldest = next(unused, None)
            if oldest is None:
                break
            self._num_kept -= self._indexes.pop(oldest).num_kept

    def guesses(self, sequences: Ordered[Sequence], room: int) -> list[tuple[int, ...]] | None:
        """Guesses at what follows the newest token of each sequence; None unless they promise enough."""
        indexes = {self._live[sequence.request.id].index: None for sequence in sequences}
        for index in indexes:
            index.note(_NOTED_AT_ONCE)
        offers = [self._offer(sequence) for sequence in sequences]
        if not any(offer.tokens for offer in offers):
            return None
        depths = [offer.depth for offer in offers]
        if sum(offer.gain for offer in offers) < _LEAST_GAIN * len(offers):
            self._num_unpromising += 1
            if self._num_unpromising % _PROBE_EVERY:
                return None
            depths = [1] * len(offers)
        # The room is dealt out evenly: those that cannot use their share are few.
        share = room // len(offers)
        return [offer.tokens[: min(depth, share)] for offer, depth in zip(offers, depths, strict=True)]

    def learn(self, sequence: Sequence, num_guessed: int, num_right: int) -> None:
        """Take in how many guesses of a pass were right."""
        odds = self._live[sequence.request.id].odds
        assert odds is not None, "nothing was guessed"
        odds.count(num_guessed, num_right)
        self.num_guessed += num_guessed
        self.num_right += num_right

    def _offer(self, sequence: Sequence) -> _Offer:
        own, num_ahead = self._live[sequence.request.id], sequence.num_drawing
        match = own.index.match(own.number, num_ahead + self._most_tokens)
        if match is None:
            return _Offer()
        own.odds = self._odds[match.length.bit_length()]
        tokens = match.following[num_ahead:]
        chances = own.odds.chances(num_ahead, len(tokens))
        return _Offer(tokens, len(chances), sum(chances))
