"""Tool calls in a model's words: how each form is read and written.

A call that cannot be read is no error of the program: it becomes a sentence for the model, and its text stays
where it was.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import msgspec

from dora_rl.core.record import Record
from dora_rl.envs.chat.messages import ToolSchema

CallForm = Literal["hermes", "llama_json"]
"""`hermes`: JSON in <tool_call> tags (Hermes, Qwen); `llama_json`: an answer that is JSON (Llama 3)."""

OPEN_CALL, CLOSE_CALL = "<tool_call>", "</tool_call>"
_HERMES_CALL = re.compile(rf"{OPEN_CALL}(.*?)(?:({CLOSE_CALL})|(?={OPEN_CALL})|\Z)", re.DOTALL)
_BETWEEN_CALLS = re.compile(r"[\s;,]*")


class ToolCall(Record, frozen=True):
    """One call that a model made, or tried to make."""

    id: str = ""
    """Nine letters and digits, the same whenever the same tokens are read."""
    name: str = ""
    arguments: dict[str, Any] = msgspec.field(default_factory=dict)
    problem: str | None = None
    """Why it cannot be carried out, as a sentence for the model; None if it can."""


def read_hermes(text: str) -> tuple[str, list[ToolCall]]:
    """The text without its calls, and the calls; what cannot be read stays in the text."""
    calls: list[ToolCall] = []

    def read(found: re.Match[str]) -> str:
        closed = found[2] is not None
        calls.append(
            _read_json(found[1]) if closed else ToolCall(problem=f"The call does not end with {CLOSE_CALL}.")
        )
        return "" if calls[-1].problem is None else found[0]

    said = _HERMES_CALL.sub(read, text)
    return (said.strip() if calls else said), calls


def read_llama_json(text: str) -> tuple[str, list[ToolCall]]:
    """Calls at the beginning of an answer that is JSON with a name, and the text behind them."""
    rest, calls = text.strip(), list[ToolCall]()
    if rest.startswith("["):
        rest = rest.removeprefix("[").removesuffix("]").strip()
    while rest.startswith("{"):
        try:
            value, end = _DECODER.raw_decode(rest)
        except (ValueError, RecursionError) as error:
            if '"name"' not in rest:
                break
            return text if not calls else rest, [*calls, ToolCall(problem=_no_json(error))]
        if not isinstance(value, dict) or "name" not in value:
            break
        calls.append(_call_of(value))
        if calls[-1].problem is not None:
            return text if len(calls) == 1 else rest, calls
        rest = rest[end + len(_BETWEEN_CALLS.match(rest[end:])[0]) :]  # type: ignore[index]
    return (rest if calls else text), calls


def write_hermes(name: str, arguments: Any) -> str:
    """A call as Hermes and Qwen write it."""
    return f'{OPEN_CALL}\n{{"name": {_json(name)}, "arguments": {_json(arguments)}}}\n{CLOSE_CALL}'


def write_llama_json(name: str, arguments: Any) -> str:
    """A call as Llama 3 writes it."""
    return f'{{"name": {_json(name)}, "parameters": {_json(arguments)}}}'


READERS: Mapping[CallForm, Callable[[str], tuple[str, list[ToolCall]]]] = {
    "hermes": read_hermes,
    "llama_json": read_llama_json,
}
WRITERS: Mapping[CallForm, Callable[[str, Any], str]] = {
    "hermes": write_hermes,
    "llama_json": write_llama_json,
}
_HOW = {
    "hermes": f'To call one, write {OPEN_CALL}{{"name": NAME, "arguments": {{...}}}}{CLOSE_CALL}.',
    "llama_json": 'To call one, answer with {"name": NAME, "parameters": {...}} and nothing else.',
}


def tools_as_text(tools: Sequence[ToolSchema], form: CallForm) -> str:
    """What a system message says of tools where the chat template says nothing of them."""
    lines = "\n".join(_json(tool.get("function", tool)) for tool in tools)
    return f"You can call these tools:\n{lines}\n{_HOW[form]}"


def _read_json(body: str) -> ToolCall:
    try:
        value = _DECODER.decode(body.strip())
    except (ValueError, RecursionError) as error:
        return ToolCall(problem=_no_json(error))
    return _call_of(value)


def _call_of(value: Any) -> ToolCall:
    """The call that a JSON value is."""
    if not isinstance(value, dict) or not isinstance(value.get("name"), str) or not value["name"]:
        return ToolCall(problem='The call is not a JSON object with a "name".')
    name, arguments = value["name"], value.get("arguments", value.get("parameters"))
    if isinstance(arguments, str):
        try:
            arguments = _DECODER.decode(arguments)
        except (ValueError, RecursionError):
            return ToolCall(problem=f"The arguments of {_shown(name)} are text and no JSON object.")
    arguments = {} if arguments is None else arguments
    if not isinstance(arguments, dict):
        return ToolCall(problem=f"The arguments of {_shown(name)} are no JSON object.")
    if not _is_text(value):
        return ToolCall(problem="The call holds half of a character (a lone surrogate).")
    return ToolCall(name=name, arguments=arguments)


def _no_json(error: Exception) -> str:
    why = error.msg if isinstance(error, json.JSONDecodeError) else "it cannot be read"
    return f"The call is not valid JSON: {why}."


def _refuse_constant(text: str) -> None:
    raise ValueError(f"{text} is no JSON")


_DECODER = json.JSONDecoder(parse_constant=_refuse_constant)


def _is_text(value: Any) -> bool:
    """Whether what JSON may escape, half of a character, is nowhere in it: no tokenizer takes that."""
    try:
        _json(value).encode()
    except (UnicodeEncodeError, RecursionError):
        return False
    return True


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _shown(name: str) -> str:
    return name.encode(errors="replace").decode()
