"""Messages in one form, however a program or a client writes them.

A message is a mapping with a role. Programs give content as text, as parts or as None, arguments as a mapping
or as JSON, thinking under three names; clients of an endpoint echo what they were sent with other spacing,
other order and keys of their own. `plain_message` is the form that is rendered; `match_key` is equal for two
messages exactly if they say the same.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from dora_rl.core.errors import UserError

Message = Mapping[str, Any]
"""A message in OpenAI's form: a mapping with `role`, `content` and, by the assistant, `tool_calls`."""
ToolSchema = Mapping[str, Any]
"""A tool in OpenAI's form: `{"type": "function", "function": {"name": ..., "parameters": ...}}`."""

Said = str | Message | Sequence[Message]
"""What is said to a model: a user's text, a message in OpenAI's form, or several."""

ROLES = ("system", "user", "assistant", "tool")
_SAME_ROLE = {"developer": "system", "function": "tool", "ipython": "tool"}
_THINKING_KEYS = ("reasoning_content", "reasoning", "thinking")


def as_messages(said: Iterable[Said]) -> list[Message]:
    """Messages in OpenAI's form: bare text is the user's, and several may come as one list."""
    messages: list[Message] = []
    for each in said:
        match each:
            case str():
                messages.append({"role": "user", "content": each})
            case Mapping():
                messages.append(each)
            case _:
                messages += as_messages(each)
    return messages


def plain_messages(messages: Iterable[Message | str]) -> list[dict[str, Any]]:
    """Messages in the form that is rendered; bare text is the user's."""
    return [
        plain_message({"role": "user", "content": message} if isinstance(message, str) else message)
        for message in messages
    ]


def plain_message(message: Message) -> dict[str, Any]:
    """One message with the keys that are rendered and no other, and no key without a value."""
    role = _SAME_ROLE.get(message.get("role", ""), message.get("role"))
    if role not in ROLES:
        raise UserError(
            f"a message has the role {message.get('role')!r}, which no chat knows",
            hint=f"a role is one of {', '.join(ROLES)}",
        )
    plain: dict[str, Any] = {"role": role, "content": text_of(message.get("content"))}
    if role == "assistant":
        thinking = next((message[key] for key in _THINKING_KEYS if message.get(key)), None)
        if isinstance(thinking, str):
            plain["reasoning_content"] = thinking
        if calls := message.get("tool_calls"):
            plain["tool_calls"] = [_plain_call(call) for call in calls]
    if role == "tool":
        plain |= {key: str(message[key]) for key in ("tool_call_id", "name") if message.get(key)}
    return plain


def text_of(content: Any) -> str:
    """The text of a message's content: a string, None, or parts that are text."""
    if content is None or isinstance(content, str):
        return content or ""
    if not isinstance(content, Sequence):
        raise UserError(
            f"the content of a message is a {type(content).__name__}, which is no text",
            hint="give it as text, in JSON for example",
        )
    return "".join(map(_text_of_part, content))


def match_key(message: Message) -> str:
    """A text that is equal for two messages exactly if they say the same to a model.

    Neither the ids of calls count, which clients may choose anew, nor thinking, which most of them leave out.
    """
    plain = plain_message(message)
    calls = [
        [call["function"]["name"], call["function"]["arguments"]] for call in plain.get("tool_calls", ())
    ]
    said = [plain["role"], plain["content"], calls]
    return json.dumps(said, sort_keys=True, ensure_ascii=False, separators=(",", ":"))


def tool_name(tool: ToolSchema) -> str:
    """The name under which a tool is called."""
    return str(tool.get("function", tool).get("name", ""))


def _text_of_part(part: Any) -> str:
    if isinstance(part, str):
        return part
    text = part.get("text", part.get("refusal")) if isinstance(part, Mapping) else None
    if not isinstance(text, str):
        kind = part.get("type", "unknown") if isinstance(part, Mapping) else type(part).__name__
        raise UserError(
            f"a message has a part of type '{kind}', and only text can be rendered",
            hint='give parts as {"type": "text", "text": ...}',
        )
    return text


def _plain_call(call: Mapping[str, Any]) -> dict[str, Any]:
    function = call.get("function", call)
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        # Arguments that are no JSON are the model's own words, and stay as they are.
        with suppress(ValueError):
            arguments = json.loads(arguments) if arguments.strip() else {}
    plain = {"name": str(function.get("name", "")), "arguments": {} if arguments is None else arguments}
    return {"id": str(call.get("id") or ""), "type": "function", "function": plain}
