"""Who answers turns, as an endpoint sees it: an episode of a run, or an engine over a checkpoint."""

from collections.abc import Sequence
from typing import Protocol

from msgspec import Struct

from dora_rl.envs.endpoint.turn_request import TurnRequest
from dora_rl.envs.episodes.turn import Turn


class TurnAnswer(Struct, frozen=True, kw_only=True):
    """One answer to a request."""

    turn: Turn
    """What was said; the ids of its calls are unique in the conversation."""
    text: str
    """What the client is sent of the turn's text: without the stop string at which it ended."""
    num_prompt_tokens: int
    """Tokens of the context that it was drawn behind."""
    model: str | None = None
    """Who answered, where that is more than the name that was asked for: the model and its version."""
    logprobs: tuple[tuple[str, float], ...] | None = None
    """Every token drawn, as text, with its logprob; None where they were not asked for."""


class Answerer(Protocol):
    """Answers the requests of one account."""

    @property
    def model(self) -> str:
        """The name under which `models` lists what answers."""
        ...

    async def answers(self, asked: TurnRequest) -> Sequence[TurnAnswer]:
        """As many answers as were asked for; raises EndpointError with what to tell the client.

        It goes on when the client has hung up: a retry gets what it gives. Called in the order in which
        requests arrive; several may be in progress.
        """
        ...

    def counted(self, what: str) -> None:
        """Note that a client did something worth a count: `retries`, or a field that is not held to."""
        ...
