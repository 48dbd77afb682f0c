"""Python functions as tools: what the policy is told of them, and their calls.

What a function says of itself makes its schema; arguments are checked against the same types. Nothing a
policy calls, and nothing a tool raises, is an error of the episode: it becomes text.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import lru_cache
from typing import Any, get_type_hints

import msgspec
from msgspec import Struct

from dora_rl.core.named import did_you_mean
from dora_rl.envs.chat.messages import Message, ToolSchema, tool_name
from dora_rl.envs.chat.tool_calls import ToolCall
from dora_rl.envs.chat.tool_schema import tool_schema
from dora_rl.envs.episodes.turn import EpisodeClosed, EpisodeTruncated

Tool = Callable[..., Any]
"""A Python function that the policy may call; it may be `async`."""
Caller = Callable[..., Awaitable[Any]]
"""Calls a function with keywords, in a thread or where it stands, and gives its value."""

_CACHED = 256
"""Functions whose descriptions are kept: an episode gives the same tools again and again."""


class ToolBox:
    """The tools of a chat: functions that can be called here, and schemas of those that cannot."""

    def __init__(self, tools: Iterable[Tool | ToolSchema]) -> None:
        """Read the schemas of all functions; what is a schema already is taken as it is."""
        given = tuple(tools)
        self.schemas: tuple[ToolSchema, ...] = tuple(
            each if isinstance(each, Mapping) else _described(each).schema for each in given
        )
        """What the policy is told of the tools, in OpenAI's form."""
        self._tools = {tool_name(schema): tool for schema, tool in zip(self.schemas, given, strict=True)}

    async def answer(self, call: ToolCall, caller: Caller) -> Message:
        """Carry out one call; returns its result, or what was wrong, as a message to the policy."""
        content = await self._result(call, caller)
        return {"role": "tool", "tool_call_id": call.id, "name": call.name, "content": content}

    async def _result(self, call: ToolCall, caller: Caller) -> str:
        if call.problem is not None:
            return f"error: {call.problem}"
        tool = self._tools.get(call.name)
        if tool is None:
            hint = did_you_mean(call.name, list(self._tools), "there are")
            return f"error: there is no tool '{call.name}'; {hint}"
        if isinstance(tool, Mapping):
            raise RuntimeError(f"the tool '{call.name}' was given as a schema, so the episode must call it")
        try:
            arguments = _described(tool).checked(call.arguments)
            return _as_text(await caller(tool, **arguments))
        except (EpisodeClosed, EpisodeTruncated):
            raise  # A tool may take turns of its own.
        except Exception as error:  # whatever a tool raises is for the policy to read
            return f"error: {error if isinstance(error, _BadArguments) else _named(error)}"


class _BadArguments(Exception):
    """The policy called a tool with arguments that it does not take; the message is for the policy."""


class _Description(Struct, frozen=True, kw_only=True):
    """A function as the policy is told of it, and the types of its arguments."""

    schema: ToolSchema
    types: dict[str, Any]

    def checked(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Arguments as the function's types; raises _BadArguments where they are not."""
        for name in self.schema["function"]["parameters"].get("required", ()):
            if name not in arguments:
                raise _BadArguments(f"the argument '{name}' is missing")
        return {name: self._checked(name, value) for name, value in arguments.items()}

    def _checked(self, name: str, value: Any) -> Any:
        if name not in self.types:
            hint = did_you_mean(name, list(self.types), "the arguments are")
            raise _BadArguments(f"there is no argument '{name}'; {hint}")
        try:
            # A policy that writes "3" for a number means the number.
            return msgspec.convert(value, self.types[name], strict=False)
        except msgspec.ValidationError as error:
            raise _BadArguments(f"the argument '{name}' is wrong: {error}") from error


def _described(tool: Tool) -> _Description:
    # Of a method the function is kept, not the object: that may be the environment of an episode.
    return _description(getattr(tool, "__func__", tool))


@lru_cache(maxsize=_CACHED)
def _description(function: Tool) -> _Description:
    schema, hints = tool_schema(function), get_type_hints(function)
    named = schema["function"]["parameters"]["properties"]
    return _Description(schema=schema, types={name: hints[name] for name in named})


def _as_text(value: Any) -> str:
    if isinstance(value, str):
        return value
    try:
        return msgspec.json.encode(value).decode()
    except (TypeError, ValueError):
        return str(value)


def _named(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
