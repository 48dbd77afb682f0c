"""What a client asks an endpoint for, whichever of OpenAI's ways it asked in."""

import json
from collections.abc import Mapping, Sequence
from functools import cached_property
from hashlib import blake2b
from typing import Any

from dora_rl.core.errors import UserError
from dora_rl.envs.chat.messages import Message, ToolSchema, match_key
from dora_rl.envs.endpoint.endpoint_error import EndpointError


class TurnRequest:
    """A conversation so far, and what may be said next."""

    def __init__(
        self,
        messages: tuple[Message, ...],
        *,
        tools: tuple[ToolSchema, ...] = (),
        max_tokens: int | None = None,
        stop: tuple[str, ...] = (),
        num_answers: int = 1,
        sampling: Mapping[str, Any] | None = None,
        wants_logprobs: bool = False,
    ) -> None:
        """`sampling` is what the client says of temperature and the like; who answers may have its own."""
        self.messages = messages
        self.tools = tools
        self.max_tokens = max_tokens
        self.stop = stop
        self.num_answers = num_answers
        self.sampling = dict(sampling or {})
        self.wants_logprobs = wants_logprobs

    @cached_property
    def histories(self) -> tuple[bytes, ...]:
        """A digest of every beginning of the conversation: of no message, of the first, and so on.

        Equal for two conversations exactly if they say the same, however their clients write it.
        """
        return histories(self.messages)

    @cached_property
    def content(self) -> bytes:
        """A digest of all that the request asks: equal requests are retries, or draws of the same."""
        limits = [self.max_tokens, self.stop, self.num_answers]
        rest = [self.tools, *limits, self.sampling, self.wants_logprobs]
        return blake2b(self.histories[-1] + _json(rest), digest_size=16).digest()

    def before_stop(self, text: str) -> str:
        """A text up to the first of the strings at which the turn ends."""
        return text[: min((at for at in map(text.find, self.stop) if at >= 0), default=len(text))]


def histories(messages: Sequence[Message]) -> tuple[bytes, ...]:
    """A digest of every beginning of a conversation, the empty one first; raises EndpointError."""
    found = [b""]
    for number, message in enumerate(messages):
        try:
            found.append(next_history(found[-1], message))
        except (UserError, AttributeError, TypeError, UnicodeEncodeError) as error:
            why = error.message if isinstance(error, UserError) else "it is not a message in OpenAI's form"
            raise EndpointError(f"message {number} cannot be read: {why}", field="messages") from error
    return tuple(found)


def next_history(before: bytes, message: Message) -> bytes:
    """The digest of a conversation that had this one before its last message."""
    return blake2b(before + match_key(message).encode(), digest_size=16).digest()


def _json(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, ensure_ascii=True, separators=(",", ":")).encode()
