"""What is asked of an engine and what it answers: plain data that any transport can carry.

A request is pinned to one version. Everything that decides its tokens is in it; nothing of the batch, the
device or the instance is.
"""

from typing import Literal

from dora_rl.core.errors import ConfigError
from dora_rl.core.recipe.generation import Sampling as Sampling
from dora_rl.core.record import Record
from dora_rl.core.stream_key import StreamKey as StreamKey


class Stopping(Record, frozen=True):
    """When a turn is over."""

    max_new_tokens: int
    stop_tokens: tuple[int, ...] | None = None
    """None: the tokens that end a completion of this model."""
    stop_strings: tuple[str, ...] = ()
    is_length_prescribed: bool = False
    """Go on to `max_new_tokens` whatever is drawn, as benchmarks do."""

    def __post_init__(self) -> None:
        if self.max_new_tokens < 1:
            raise ConfigError(f"max_new_tokens {self.max_new_tokens} leaves nothing to generate")
        if "" in self.stop_strings:
            raise ConfigError("an empty stop string would end every turn before it begins")


class Request(Record, frozen=True):
    """One trajectory to generate, or to go on with."""

    id: int
    version: int
    prompt: tuple[int, ...]
    key: StreamKey
    stopping: Stopping
    sampling: Sampling = Sampling()
    continued: tuple[int, ...] = ()
    """Tokens after the prompt that exist already, generated or from an environment: prefilled, not drawn."""
    group: int | None = None
    """Requests of one group and version have the same prompt, which is prefilled once."""
    deadline: int = 0
    """The batch it is due in. Lower is more urgent; among equals the earlier submitted is."""
    holds_turn: bool = False
    """Keep its KV when a turn ends, to be resumed with the environment's tokens or aborted."""


Reason = Literal["stop token", "stop string", "length", "aborted"]


class Finished(Record, frozen=True, tag=True):
    """A turn ended. Only tokens drawn in this turn are listed."""

    id: int
    version: int
    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    """Of each token, at the sampling temperature, over the full vocabulary."""
    cut_logprobs: tuple[float, ...]
    """Of each token after top-k, top-p and min-p; empty where none of them is on."""
    reason: Reason
    is_held: bool = False
    """The engine keeps its KV and waits for `resume` or `abort`."""

    @property
    def drawn(self) -> "DrawnTokens":
        """All that the turn drew."""
        return DrawnTokens(
            request=self.id,
            version=self.version,
            tokens=self.tokens,
            logprobs=self.logprobs,
            cut_logprobs=self.cut_logprobs,
        )


class DrawnTokens(Record, frozen=True):
    """Tokens that a request drew in its turn, from some token on."""

    request: int
    version: int
    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    cut_logprobs: tuple[float, ...]

    def since(self, first: int) -> "DrawnTokens":
        """What comes after so many of them."""
        return DrawnTokens(
            request=self.request,
            version=self.version,
            tokens=self.tokens[first:],
            logprobs=self.logprobs[first:],
            cut_logprobs=self.cut_logprobs[first:],
        )


class Failed(Record, frozen=True, tag=True):
    """This request cannot be carried out; all others go on."""

    id: int
    message: str
    hint: str | None = None


Event = Finished | Failed
