"""Requests that are held between turns without KV: what to submit when they are resumed.

Their engine holds no turns, or they were interrupted and all KV was dropped. To whoever resumes them they
are held like any other; only the prefill behind their tokens is paid for again.
"""

from msgspec.structs import replace

from dora_rl.engines.requests import Request


class TurnsWithoutKv:
    """The requests of one instance that wait without KV, or will when their turn ends."""

    def __init__(self, *, engine_holds_turns: bool) -> None:
        self._engine_holds_turns = engine_holds_turns
        self._begun: dict[int, Request] = {}
        """Requests in a turn whose end their engine cannot hold, as the turn began."""
        self._waiting: dict[int, Request] = {}

    def __contains__(self, id: int) -> bool:
        """Whether a request waits here."""
        return id in self._waiting

    def begin(self, request: Request) -> Request:
        """The request as the engine takes it, which is not asked to hold what it cannot."""
        if not request.holds_turn or self._engine_holds_turns:
            return request
        self._begun[request.id] = request
        return replace(request, holds_turn=False)

    def begun(self, id: int) -> Request | None:
        """A request in a turn that will wait here, as the turn began."""
        return self._begun.get(id)

    def end(self, id: int, tokens: tuple[int, ...]) -> bool:
        """Let a request wait whose turn drew these tokens; returns whether it does."""
        request = self._begun.pop(id, None)
        if request is not None:
            self._waiting[id] = request.behind(tokens, request.stopping.max_new_tokens)
        return request is not None

    def wait(self, request: Request) -> None:
        """Let a request wait from now on, with the tokens it has."""
        self._waiting[request.id] = request

    def take(self, id: int) -> Request | None:
        """A request that waits here, to be submitted or forgotten; None where it does not."""
        self._begun.pop(id, None)
        return self._waiting.pop(id, None)

    def version(self, id: int) -> int:
        """The version of a request that waits here."""
        return self._waiting[id].version
