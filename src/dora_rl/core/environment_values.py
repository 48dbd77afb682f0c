"""Values that a recipe takes from the environment: `env:NAME` in `options` is the variable NAME's.

The recipe, and so everything that is written down of it, keeps the reference; the value is looked up by the
process that uses it, and nowhere else.
"""

import os
import re
from collections.abc import Iterator, Mapping
from typing import Any

from dora_rl.core.errors import UserError

_REFERENCE = re.compile(r"env:([A-Za-z_][A-Za-z0-9_]*)")
_HIDDEN_CHARACTERS = 6
"""Characters from which on a value is taken out of texts: shorter ones stand in many words."""


def variable_of(value: Any) -> str | None:
    """The variable that a value of a recipe refers to; None where it is what it says."""
    found = _REFERENCE.fullmatch(value) if isinstance(value, str) else None
    return found[1] if found else None


def with_environment(options: Mapping[str, Any], what: str) -> dict[str, Any]:
    """Options with the values of variables they refer to; a UserError where `what` refers to one not set."""
    return {key: _looked_up(value, what) for key, value in options.items()}


def hidden(text: str, options: Mapping[str, Any]) -> str:
    """A text in which values that options take from the environment are the references again."""
    for name in dict.fromkeys(_variables(options)):
        value = os.environ.get(name, "")
        if len(value) >= _HIDDEN_CHARACTERS:
            text = text.replace(value, f"env:{name}")
    return text


def _looked_up(value: Any, what: str) -> Any:
    match value:
        case str() if (name := variable_of(value)) is not None:
            if name not in os.environ:
                raise UserError(
                    f"{what} takes a value from the environment variable {name}, which is not set",
                    hint=f"set it where the run is started: export {name}=...",
                )
            return os.environ[name]
        case list() | tuple():
            return [_looked_up(each, what) for each in value]
        case dict():
            return with_environment(value, what)
    return value


def _variables(value: Any) -> Iterator[str]:
    match value:
        case str() if (name := variable_of(value)) is not None:
            yield name
        case list() | tuple():
            for each in value:
                yield from _variables(each)
        case Mapping():
            yield from _variables(list(value.values()))
