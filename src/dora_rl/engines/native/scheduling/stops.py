"""When is a turn over?

Knows tokens, and text through a function it is given. Only the newest token is looked at: everything before
it did not end the turn.
"""

from collections.abc import Callable, Iterable
from collections.abc import Sequence as Tokens

from dora_rl.engines.native.scheduling.sequence import Sequence
from dora_rl.engines.requests import Reason

Decode = Callable[[Tokens[int]], str]


class Stops:
    """The stopping rules of one model: tokens, strings and lengths."""

    def __init__(self, eos_tokens: Iterable[int], decode: Decode | None = None) -> None:
        self._eos_tokens = tuple(eos_tokens)
        self._decode = decode

    @property
    def knows_text(self) -> bool:
        """Whether stop strings can be looked for."""
        return self._decode is not None

    def equip(self, sequence: Sequence) -> None:
        """Set the stop tokens and strings that end a sequence's turns."""
        stopping = sequence.request.stopping
        if not stopping.is_length_prescribed:
            own = stopping.stop_tokens
            sequence.stop_tokens = self._eos_tokens if own is None else own
            sequence.stop_strings = stopping.stop_strings

    def reason(self, sequence: Sequence) -> Reason | None:
        """Why the turn ends with the newest token, or None."""
        if sequence.tokens[-1] in sequence.stop_tokens:
            return "stop token"
        if sequence.stop_strings and self._has_stop_string(sequence, sequence.stop_strings):
            return "stop string"
        return "length" if len(sequence.tokens) >= sequence.max_tokens else None

    def _has_stop_string(self, sequence: Sequence, stop_strings: tuple[str, ...]) -> bool:
        text = self._tail(sequence.tokens[sequence.turn_start :], max(map(len, stop_strings)))
        return any(stop in text for stop in stop_strings)

    def _tail(self, tokens: list[int], num_characters: int) -> str:
        """The end of the turn's text, from its last few tokens: more of them where they say little."""
        assert self._decode is not None, "stop strings need a tokenizer"
        num_tokens = num_characters + 8
        text = self._decode(tokens[-num_tokens:])
        # A few characters more than asked for: the first token of the tail may be half a character.
        while len(text) < num_characters + 4 and num_tokens < len(tokens):
            num_tokens *= 2
            text = self._decode(tokens[-num_tokens:])
        return text
