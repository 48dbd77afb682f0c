"""A Python function as a tool: its schema, from its signature and docstring.

The docstring is in Google's style; the schema is what `transformers.utils.get_json_schema` gives, which would
import torch.
"""

import inspect
import json
import re
import types
from collections.abc import Callable
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from dora_rl.core.errors import UserError

_TYPES: dict[Any, dict[str, Any]] = {
    int: {"type": "integer"},
    float: {"type": "number"},
    str: {"type": "string"},
    bool: {"type": "boolean"},
    types.NoneType: {"type": "null"},
    list: {"type": "array"},
    tuple: {"type": "array"},
    dict: {"type": "object"},
    Any: {},
}
_SECTION = re.compile(r"^(Args|Returns|Raises|Yields|Examples?|Note):[ \t]*$", re.MULTILINE)
_ARGUMENT = re.compile(r"^(\w+)\s*(?:\([^)]*\))?:\s*(.*)$")
_CHOICES = re.compile(r"\(choices:\s*(\[.*?\])\)\s*$", re.IGNORECASE)


def tool_schema(function: Callable[..., Any]) -> dict[str, Any]:
    """The schema of a function or bound method, in OpenAI's form."""
    name = getattr(function, "__name__", type(function).__name__)
    description, arguments, returns = _documented(inspect.getdoc(function) or "")
    if not description:
        raise UserError(
            f"the tool {name} has no docstring, so the model cannot know what it does",
            hint="write one: a sentence, and 'Args:' with a line for each argument",
        )
    hints = _hints(function, name)
    properties = {each: _schema(hint, f"{name}({each})") for each, hint in hints.items() if each != "return"}
    for each, schema in properties.items():
        _describe(schema, arguments.get(each), f"{name}({each})")
    parameters: dict[str, Any] = {"type": "object", "properties": properties}
    if required := _required(function):
        parameters["required"] = required
    schema = {"name": name, "description": description, "parameters": parameters}
    if "return" in hints:
        schema["return"] = _schema(hints["return"], f"{name}()") | (
            {"description": returns} if returns else {}
        )
    return {"type": "function", "function": schema}


def _hints(function: Callable[..., Any], name: str) -> dict[str, Any]:
    """The types of all arguments, in their order, and of what is returned."""
    hints = get_type_hints(function)
    known: dict[str, Any] = {}
    for each, parameter in _parameters(function).items():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
            raise UserError(
                f"the argument {each} of the tool {name} cannot be given by name",
                hint="a tool is called with its arguments by name",
            )
        if each not in hints:
            raise UserError(
                f"the argument {each} of the tool {name} has no type", hint=f"annotate it, as in {each}: str"
            )
        known[each] = hints[each]
    return known | ({"return": hints["return"]} if "return" in hints else {})


def _parameters(function: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    parameters = dict(inspect.signature(function).parameters)
    first = next(iter(parameters), "")
    # A method taken from its class still has its receiver.
    if first in ("self", "cls") and parameters[first].annotation is inspect.Parameter.empty:
        del parameters[first]
    return parameters


def _required(function: Callable[..., Any]) -> list[str]:
    return [name for name, each in _parameters(function).items() if each.default is inspect.Parameter.empty]


def _schema(hint: Any, where: str) -> dict[str, Any]:
    origin, inner = get_origin(hint), get_args(hint)
    if origin is None:
        return dict(_TYPES.get(hint, {"type": "object"}))
    if origin in (Union, types.UnionType):
        return _union(inner, where)
    if origin is Literal:
        kinds = list(dict.fromkeys(_TYPES[type(each)]["type"] for each in inner))
        return {"type": kinds[0] if len(kinds) == 1 else kinds, "enum": list(inner)}
    if origin is list:
        return {"type": "array", "items": _schema(inner[0], where)}
    if origin is tuple and ... not in inner:
        return {"type": "array", "prefixItems": [_schema(each, where) for each in inner]}
    if origin is dict:
        return {"type": "object", "additionalProperties": _schema(inner[1], where)}
    raise UserError(
        f"{where} has the type {hint}, which no schema can say", hint="use list[...] or dict[...]"
    )


def _union(members: tuple[Any, ...], where: str) -> dict[str, Any]:
    """One of several types; None makes it nullable."""
    schemas = [_schema(each, where) for each in members if each is not types.NoneType]
    if len(schemas) == 1:
        union = schemas[0]
    elif all(schema.keys() == {"type"} and isinstance(schema["type"], str) for schema in schemas):
        kinds = sorted({schema["type"] for schema in schemas})
        union = {"type": kinds[0] if len(kinds) == 1 else kinds}
    else:
        union = {"anyOf": schemas}
    return union | ({"nullable": True} if types.NoneType in members else {})


def _describe(schema: dict[str, Any], text: str | None, where: str) -> None:
    """Put what the docstring says of an argument into its schema."""
    if text is None:
        return
    if found := _CHOICES.search(text):
        try:
            schema["enum"] = [str(each) for each in json.loads(found[1])]
        except ValueError as error:
            raise UserError(
                f"the choices of {where} are no JSON list: {found[1]}", hint='write (choices: ["a", "b"])'
            ) from error
        text = text[: found.start()].strip()
    schema["description"] = text


def _documented(text: str) -> tuple[str, dict[str, str], str]:
    """A docstring's description, what it says of each argument, and of what is returned."""
    pieces = _SECTION.split(text)
    sections = dict(zip(pieces[1::2], pieces[2::2], strict=True))
    arguments: dict[str, str] = {}
    lines = inspect.cleandoc("\n" + sections.get("Args", "")).splitlines()
    last = ""
    for line in lines:
        if line and not line[0].isspace() and (found := _ARGUMENT.match(line)):
            last = found[1]
            arguments[last] = found[2].strip()
        elif last and line.strip():
            arguments[last] = f"{arguments[last]} {line.strip()}".strip()
    return pieces[0].strip(), arguments, inspect.cleandoc("\n" + sections.get("Returns", "")).strip()
