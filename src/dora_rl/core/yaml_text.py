"""YAML as recipes are written: text becomes plain data, and what is no YAML becomes one sentence."""

import re
from pathlib import Path
from typing import Any

import yaml

from dora_rl.core.errors import ConfigError


def load_yaml(path: Path) -> dict[str, Any]:
    """The mapping in a YAML file; an empty file is an empty mapping."""
    try:
        tree = parse_yaml(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}", hint="check the path") from error
    except UnicodeDecodeError as error:
        byte = f"byte {error.object[error.start]:#04x} at position {error.start}"
        raise ConfigError(f"{path} is not text in UTF-8: {byte}", hint=_FORM) from error
    except yaml.YAMLError as error:
        raise ConfigError(f"{path} is not valid YAML: {_in_one_line(error)}", hint=_way_out(error)) from error
    if not isinstance(tree, dict | None):
        raise ConfigError(f"{path} is not a mapping", hint=_FORM)
    return tree or {}


def parse_yaml(text: str) -> Any:
    """The plain data that YAML describes; a `yaml.YAMLError` if it is none."""
    return yaml.load(text, _Loader)


class _Loader(yaml.SafeLoader):
    """YAML in which `1e-6` is a number and a key written twice is an error."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        names = [key.value for key, _ in node.value]
        for position, (key, _) in enumerate(node.value):
            if key.value in names[:position]:
                raise yaml.MarkedYAMLError(
                    problem=f"key {key.value!r} is repeated", problem_mark=key.start_mark
                )
        return super().construct_mapping(node, deep)


# YAML 1.1 wants a dot and a signed exponent: without this, the learning rate 1e-6 would be read as text.
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+$"), list("-+.0123456789")
)

_FORM = "a recipe is lines of the form 'key: value'; `dora init DIR` writes one"
_WAYS_OUT = {
    "is repeated": "write it once",
    "'\\t'": "indent with spaces: YAML knows no tabs",
    "mapping values are not allowed": "keys of one level begin in one column, and a text with ': ' is quoted",
}
"""What helps against a mistake, by a part of the parser's words."""


def _in_one_line(error: yaml.YAMLError) -> str:
    """What the parser found and where, without its drawing of the place."""
    if not isinstance(error, yaml.MarkedYAMLError) or error.problem_mark is None:
        return " ".join(str(error).split())
    return f"line {error.problem_mark.line + 1}, column {error.problem_mark.column + 1}: {error.problem}"


def _way_out(error: yaml.YAMLError) -> str:
    words = str(error)
    return next((hint for part, hint in _WAYS_OUT.items() if part in words), _FORM)
