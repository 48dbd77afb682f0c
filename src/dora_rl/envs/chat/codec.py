"""The codec: messages and tools to token ids, an extension of existing ids, and ids back to a message.

    begin(messages)              the whole context of a branch, up to where the model answers
    extend(ids, new messages)    what is appended behind a sampled turn, which is never rendered again
    parse(sampled ids)           text, thinking and tool calls

A codec keeps nothing between calls: the ids of a branch are all there is to know.
"""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, Literal, Protocol

import msgspec

from dora_rl.core.record import Record
from dora_rl.envs.chat.messages import Message, ToolSchema
from dora_rl.envs.chat.tool_calls import ToolCall

ThinkingKept = Literal["keep", "strip"]
"""`keep`: thinking stays in the context; `strip`: a user's message takes all earlier thinking out of it."""


class Parsed(Record, frozen=True):
    """What a model said in one turn."""

    text: str
    """What it said outside thinking and tool calls; a call that cannot be read stays in it."""
    thinking: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    """Every call it made or tried to make, in order."""

    @property
    def message(self) -> dict[str, Any]:
        """The turn as a message: what a client is sent, and what renders as the turn again."""
        message: dict[str, Any] = {"role": "assistant", "content": self.text}
        if self.thinking:
            message["reasoning_content"] = self.thinking
        if calls := [call for call in self.tool_calls if call.problem is None]:
            message["tool_calls"] = [
                {
                    "id": call.id,
                    "type": "function",
                    "function": {"name": call.name, "arguments": call.arguments},
                }
                for call in calls
            ]
        return message


class Codec(Protocol):
    """Messages to token ids and back, for one tokenizer."""

    @property
    def stop_ids(self) -> frozenset[int]:
        """Tokens with which a turn ends of itself; the engine must stop at one of them."""
        ...

    def begin(self, messages: Sequence[Message | str], tools: Sequence[ToolSchema] = ()) -> list[int]:
        """The whole context of a new branch, up to where the model answers."""
        ...

    def extend(
        self, ids: Sequence[int], messages: Sequence[Message | str], tools: Sequence[ToolSchema] = ()
    ) -> list[int] | None:
        """What is appended to the ids of a branch that ends with a sampled turn; None: open a new branch."""
        ...

    def parse(self, ids: Sequence[int], tools: Sequence[ToolSchema] = ()) -> Parsed:
        """What a model said with the tokens of one turn; never an error.

        Some forms of calls do not tell a text from a number: there the schemas of the tools do.
        """
        ...


def named_calls(calls: Sequence[ToolCall], ids: Sequence[int]) -> tuple[ToolCall, ...]:
    """Calls with ids that depend on the sampled tokens alone, so that a turn read again has the same."""
    if not calls:
        return ()
    turn = hashlib.blake2b(" ".join(map(str, ids)).encode(), digest_size=4).hexdigest()[:7]
    return tuple(msgspec.structs.replace(call, id=f"{turn}{number:02d}") for number, call in enumerate(calls))


TemplateOptions = Mapping[str, Any]
"""Variables for the chat template, such as `enable_thinking`."""
