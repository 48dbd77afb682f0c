"""What is asked of an engine and what it answers: plain data that any transport can carry.

A request is pinned to one version. Everything that decides its tokens is in it; nothing of the batch, the
device or the instance is.
"""

from typing import Literal

from msgspec.structs import replace

from dora_rl.core.errors import ConfigError
from dora_rl.core.recipe.generation import Sampling as Sampling
from dora_rl.core.record import Record
from dora_rl.core.stream_key import StreamKey as StreamKey


class Stopping(Record, frozen=True):
    """When a turn of a request is over: at which tokens, strings or length."""

    max_new_tokens: int
    stop_tokens: tuple[int, ...] | None = None
    """Token ids that end a turn; None for those that end a completion of this model."""
    stop_strings: tuple[str, ...] = ()
    is_length_prescribed: bool = False
    """Whether to go on to `max_new_tokens` whatever is drawn, as benchmarks do."""

    def of_turn(self, max_new_tokens: int | None, stop_strings: tuple[str, ...] | None) -> "Stopping":
        """The rules of a later turn; what is None is as before."""
        return replace(
            self,
            max_new_tokens=self.max_new_tokens if max_new_tokens is None else max_new_tokens,
            stop_strings=self.stop_strings if stop_strings is None else stop_strings,
        )

    def __post_init__(self) -> None:
        if self.max_new_tokens < 1:
            raise ConfigError(f"max_new_tokens {self.max_new_tokens} leaves nothing to generate")
        if "" in self.stop_strings:
            raise ConfigError("an empty stop string would end every turn before it begins")


class Request(Record, frozen=True):
    """One trajectory for an engine to generate, or to go on with."""

    id: int
    version: int
    prompt: tuple[int, ...]
    key: StreamKey
    stopping: Stopping
    sampling: Sampling = Sampling()
    continued: tuple[int, ...] = ()
    """Tokens after the prompt that exist already, generated or from an environment: prefilled, not drawn."""
    group: int | None = None
    """The group of the request: requests of one group and version share a prompt, which is prefilled once."""
    lineage: int | None = None
    """What requests that may begin alike have in common, such as branches of an episode: one that gives way
    between turns leaves its KV, as long as there is room, to others of its lineage and version."""
    deadline: int = 0
    """The batch the request is due in. Lower is more urgent; among equals the earlier submitted is."""
    holds_turn: bool = False
    """Whether to keep the KV when a turn ends, to be resumed with the environment's tokens or aborted."""

    def behind(
        self, tokens: tuple[int, ...], max_new_tokens: int, stop_strings: tuple[str, ...] | None = None
    ) -> "Request":
        """The same request behind these tokens too, with so many left to draw, and its next turn's stops."""
        return replace(
            self,
            continued=(*self.continued, *tokens),
            stopping=self.stopping.of_turn(max_new_tokens, stop_strings),
        )


Reason = Literal["stop token", "stop string", "length", "aborted"]


class Finished(Record, frozen=True, tag=True):
    """A turn of a request ended. Only tokens drawn in this turn are listed."""

    id: int
    version: int
    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    """Logprob of each token, at the sampling temperature, over the full vocabulary."""
    cut_logprobs: tuple[float, ...]
    """Logprob of each token after top-k, top-p and min-p; empty where none of them is on."""
    reason: Reason
    is_held: bool = False
    """Whether the engine keeps the KV and waits for `resume` or `abort`."""
    experts: tuple[bytes, ...] = ()
    """The experts behind each draw, where they are recorded; see `core.routes`."""

    @property
    def drawn(self) -> "DrawnTokens":
        """All tokens that the turn drew."""
        return DrawnTokens(
            request=self.id,
            version=self.version,
            tokens=self.tokens,
            logprobs=self.logprobs,
            cut_logprobs=self.cut_logprobs,
            experts=self.experts,
        )


class DrawnTokens(Record, frozen=True):
    """Tokens that a request drew in its turn, from some token on, with their logprobs."""

    request: int
    version: int
    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    cut_logprobs: tuple[float, ...]
    experts: tuple[bytes, ...] = ()
    """The experts behind each draw, where they are recorded; see `core.routes`."""

    def since(self, first: int) -> "DrawnTokens":
        """These tokens without the first `first` of them."""
        return DrawnTokens(
            request=self.request,
            version=self.version,
            tokens=self.tokens[first:],
            logprobs=self.logprobs[first:],
            cut_logprobs=self.cut_logprobs[first:],
            experts=self.experts[first:],
        )


class Failed(Record, frozen=True, tag=True):
    """A request cannot be carried out, and why; all others go on."""

    id: int
    message: str
    hint: str | None = None


Event = Finished | Failed
