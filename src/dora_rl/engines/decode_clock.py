"""How fast an engine decodes, in rounds: what a report to control is made of.

Versions take turns, one step each a round, so a request that decodes without interruption gains one token a
round, whichever version it is of and however many there are. A step whose guesses came true counts as so
many rounds. Time is an argument.
"""

_NEWEST_WEIGHS = 0.1


class DecodeClock:
    """Counts rounds and the seconds of one; told of every step that drew tokens."""

    def __init__(self) -> None:
        self.rounds = 0.0
        self.round_s: float | None = None
        """Seconds of a decode round, as a running average; None before the first."""
        self._began_at: float | None = None
        self._had_turn: frozenset[int | None] = frozenset()
        """Versions that drew tokens in the round in progress."""

    def count(self, version: int | None, now: float, num_tokens: float = 1.0) -> None:
        """Note that a version drew so many tokens a request; its second time begins a new round."""
        if self._had_turn and version not in self._had_turn:
            self._had_turn |= {version}
            return
        self.rounds += num_tokens
        self._had_turn = frozenset({version})
        if self._began_at is not None:
            elapsed_s = (now - self._began_at) / num_tokens
            weight = 1.0 if self.round_s is None else _NEWEST_WEIGHS
            self.round_s = weight * elapsed_s + (1 - weight) * (self.round_s or 0.0)
        self._began_at = now

    def rest(self) -> None:
        """Note that nothing will decode for a while: the time until the next step is no part of a round."""
        self._began_at = None
