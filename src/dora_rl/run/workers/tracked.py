"""The native engine, and how far its requests are: what a report to control is made of.

The decode clock counts rounds: versions take turns, one step each a round, so a request that decodes without
interruption gains one token a round, whichever version it is of and however many there are.
"""

import time

from dora_rl.engines.errors import RequestError
from dora_rl.engines.native.engine import NativeEngine
from dora_rl.engines.requests import Request
from dora_rl.run.messages import Drawn

_NEWEST_WEIGHS = 0.1


class TrackedEngine(NativeEngine):
    """An engine that is watched from outside."""

    clock = 0.0
    step_s: float | None = None
    """Seconds of a round, as a running average; None before the first."""
    _began_at: float | None = None
    _had_turn: frozenset[int | None] = frozenset()
    """Versions that drew tokens in this round."""

    def drawn(self, request_id: int, first: int = 0) -> Drawn | None:
        """What a request has drawn in this turn from its `first` token on; None if it is not here."""
        try:
            sequence = self._scheduler.find(request_id)
        except RequestError:
            return None
        return Drawn(
            request=request_id,
            version=sequence.request.version,
            tokens=tuple(sequence.tokens[sequence.turn_start + first :]),
            logprobs=tuple(sequence.logprobs[first:]),
            cut_logprobs=tuple(sequence.cut_logprobs[first:]),
        )

    def request(self, request_id: int) -> Request:
        """As it was submitted."""
        return self._scheduler.find(request_id).request

    def rest(self) -> None:
        """Nothing will decode for a while: the time until the next step is no part of a round."""
        self._began_at = None

    def _take_in(self) -> None:
        plan = self._under_way[0][0]
        super()._take_in()
        if any(row.is_sampled for row in plan.rows):
            self._count(plan.version, time.monotonic())

    def _count(self, version: int | None, now: float) -> None:
        if self._had_turn and version not in self._had_turn:
            self._had_turn |= {version}
            return
        self.clock += 1
        self._had_turn = frozenset({version})
        if self._began_at is not None:
            elapsed_s = now - self._began_at
            weight = 1.0 if self.step_s is None else _NEWEST_WEIGHS
            self.step_s = weight * elapsed_s + (1 - weight) * (self.step_s or 0.0)
        self._began_at = now
