"""Fields of a request: what each is, checked, and what is not had here refused with a sentence."""

from collections.abc import Collection, Mapping
from typing import Any

import msgspec
from msgspec import Struct

from dora_rl.core.named import did_you_mean
from dora_rl.envs.chat.messages import ToolSchema
from dora_rl.envs.endpoint.endpoint_error import EndpointError
from dora_rl.envs.endpoint.turn_request import TurnRequest

SAMPLING = frozenset(
    {"temperature", "top_p", "top_k", "min_p", "seed", "frequency_penalty", "presence_penalty"}
    | {"repetition_penalty", "reasoning_effort", "reasoning", "verbosity"}
)
"""Fields about how tokens are drawn."""
HINTS = frozenset(("tool_choice", "parallel_tool_calls", "max_tool_calls", "truncation"))
"""Fields that are counted, and that nothing holds the model to."""
IGNORED = frozenset(
    {"user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key", "include"}
    | {"prompt_cache_retention", "stream_options", "stream", "model", "n", "stop", "tools"}
)
"""Fields that change nothing of what is answered, or are read elsewhere."""
_MAX_ANSWERS = 64
_MAX_STOPS = 16
_NOT_HERE = "is not had here"


class Call(Struct, frozen=True, kw_only=True):
    """A request as read: what is asked, and how the answer is to look."""

    asked: TurnRequest
    model: str
    is_streamed: bool
    includes_usage: bool
    hints: tuple[str, ...]
    """Fields that the client gave and that nothing holds the model to."""
    body: Mapping[str, Any]


def given(body: Mapping[str, Any], *, used: Collection[str], refused: Mapping[str, str]) -> dict[str, Any]:
    """The fields of a request that have a value; raises EndpointError for one not known or not had."""
    fields = {name: value for name, value in body.items() if value is not None}
    known = {*used, *SAMPLING, *HINTS, *IGNORED}
    for name, value in fields.items():
        if name in refused:
            if not _is_empty(name, value):
                raise EndpointError(f"'{name}' {_NOT_HERE}: {refused[name]}", field=name, code="unsupported")
        elif name not in known:
            hint = did_you_mean(name, sorted(known), "known are")
            raise EndpointError(f"there is no field '{name}'; {hint}", field=name, code="unknown_field")
    return fields


def number(fields: Mapping[str, Any], name: str, *, most: int | None = None) -> int | None:
    """A field that is a whole number from 1 on; None if it is not given."""
    value = fields.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value < 1 or (most and value > most):
        upto = f" to {most}" if most else " on"
        raise EndpointError(f"'{name}' is a whole number from 1{upto}, not {value!r:.80}", field=name)
    return value


def num_answers(fields: Mapping[str, Any]) -> int:
    """How many answers a request asks for."""
    return number(fields, "n", most=_MAX_ANSWERS) or 1


def stops(fields: Mapping[str, Any]) -> tuple[str, ...]:
    """The strings at which a turn ends."""
    value = fields.get("stop", ())
    found = (value,) if isinstance(value, str) else value
    if not isinstance(found, list | tuple) or not all(isinstance(each, str) and each for each in found):
        raise EndpointError(f"'stop' is a text or a list of texts, not {value!r:.80}", field="stop")
    if len(found) > _MAX_STOPS:
        raise EndpointError(
            f"'stop' has {len(found)} texts; at most {_MAX_STOPS} are looked for", field="stop"
        )
    return tuple(found)


def tools(fields: Mapping[str, Any]) -> tuple[ToolSchema, ...]:
    """Function tools in one form, whether their fields lie in `function` or beside the type."""
    found = fields.get("tools", [])
    if not isinstance(found, list):
        raise EndpointError("'tools' is a list", field="tools")
    return tuple(map(_tool, found))


def texts_only(fields: Mapping[str, Any], name: str) -> None:
    """Refuse a form of answer that only a constrained engine could keep to."""
    value = fields.get(name)
    form = value.get("format", value) if isinstance(value, Mapping) else value
    kind = form.get("type", "text") if isinstance(form, Mapping) else form
    if value is not None and kind != "text":
        raise EndpointError(
            f"'{name}' {_NOT_HERE}: answers are drawn freely, so that they can be trained on; "
            "say in the prompt what form they should have",
            field=name,
            code="unsupported",
        )


def sampling(fields: Mapping[str, Any]) -> dict[str, Any]:
    """What a client says about how tokens are drawn."""
    return {name: fields[name] for name in sorted(SAMPLING & fields.keys())}


def hints(fields: Mapping[str, Any]) -> tuple[str, ...]:
    """Fields that a client gave and that nothing holds the model to."""
    is_default = {"tool_choice": "auto", "parallel_tool_calls": True, "truncation": "disabled"}
    return tuple(sorted(name for name in HINTS & fields.keys() if fields[name] != is_default.get(name)))


def json_object(body: bytes) -> Mapping[str, Any]:
    """The JSON object that a request's body is."""
    try:
        found = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise EndpointError(f"the body is not JSON: {error}", code="invalid_json") from error
    if not isinstance(found, dict):
        raise EndpointError("the body is not a JSON object", code="invalid_json")
    return found


def _tool(tool: Any) -> ToolSchema:
    kind = tool.get("type", "function") if isinstance(tool, Mapping) else type(tool).__name__
    if kind != "function":
        raise EndpointError(
            f"a tool of type '{kind}' {_NOT_HERE}: only functions are, which the client calls",
            field="tools",
            code="unsupported",
        )
    function = tool.get("function", tool)
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise EndpointError("a tool has no name", field="tools")
    # `strict` is a promise of constrained engines; what is drawn freely cannot make it.
    kept = {name: function[name] for name in ("name", "description", "parameters") if function.get(name)}
    kept.setdefault("parameters", {"type": "object", "properties": {}})
    return {"type": "function", "function": kept}


def _is_empty(name: str, value: Any) -> bool:
    return value in (False, 0, "", [], {}) or (name == "modalities" and value == ["text"])
