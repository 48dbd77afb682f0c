"""Loading: plain data and `--set` assignments become one frozen, typed tree of msgspec Structs.

A user's tree says only what differs: it is laid over the defaults level by level, and a union of Structs
keeps its default member until its tag names another. Every mistake is a ConfigError with the dotted path
and what would be accepted. Knows no recipe in particular: the schema is an argument.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from difflib import get_close_matches
from functools import cache
from typing import Any, TypeVar

import msgspec
import yaml
from msgspec import NODEFAULT, inspect

from dora_rl.core.errors import ConfigError
from dora_rl.core.yaml_text import parse_yaml

T = TypeVar("T", bound=msgspec.Struct)
Tree = dict[str, Any]
"""A recipe, or a part of one, as plain nested mappings."""

_MOST_MEANT = 4
_MOST_LISTED = 30
"""Most keys of a section that an error lists in full."""
_ENTRY = re.compile(r"(.+?)(?:\[\d+\]|\.\d+)(?:\..*)?$")
"""Matches a path into a list, such as `rewards[0].weight` or `rewards.0`."""


def override(tree: Tree, assignments: Sequence[str], root: type[msgspec.Struct]) -> Tree:
    """A copy of `tree` with each `path=value` applied; a path may be any unambiguous suffix of a full one."""
    changed = tree
    for assignment in assignments:
        name, value = split_assignment(assignment)
        changed = assigned(changed, {name: value}, root)
    return deepcopy(changed) if changed is tree else changed


def assigned(tree: Tree, values: Mapping[str, Any], root: type[msgspec.Struct]) -> Tree:
    """A copy of `tree` with each path set to its value; a path may be any unambiguous end of a full one."""
    schema = _schema(root)
    changed = deepcopy(tree)
    for name, value in values.items():
        _assign(changed, schema, _full_path(name, schema).split("."), value)
    return changed


def build(root: type[T], tree: Tree, source: str) -> T:
    """The Struct that `tree` describes, laid over the defaults; `source` names the tree in errors."""
    try:
        return _convert(_complete_struct(_schema(root), tree, {}, ""), root)
    except ConfigError as error:
        raise ConfigError(f"{source}: {error.message}", hint=error.hint) from error


@cache
def _schema(root: type[msgspec.Struct]) -> inspect.Type:
    return inspect.type_info(root)


def to_dict(struct: msgspec.Struct) -> Tree:
    """Plain data that `build` turns back into an equal Struct."""
    plain: Tree = msgspec.to_builtins(struct)
    return plain


def to_yaml(struct: msgspec.Struct) -> str:
    """The Struct as a YAML document, fields in the order of their declaration."""
    return yaml.safe_dump(to_dict(struct), sort_keys=False, allow_unicode=True)


def split_assignment(assignment: str) -> tuple[str, Any]:
    """The path of an assignment `path=value`, and its value read as YAML."""
    name, equals, text = assignment.partition("=")
    if not (name and equals):
        raise ConfigError(f"override '{assignment}' assigns nothing", hint="write it as path=value")
    try:
        return name, parse_yaml(text)
    except yaml.YAMLError as error:
        raise ConfigError(
            f"the value of override '{assignment}' is not valid YAML", hint="quote it"
        ) from error


def _full_path(name: str, schema: inspect.Type) -> str:
    paths = list(dict.fromkeys(_paths(schema)))
    matches = [path for path in paths if f".{path}".endswith(f".{name}")]
    if name in matches or len(matches) == 1:
        return name if name in matches else matches[0]
    if matches:
        raise ConfigError(f"key '{name}' is ambiguous", hint=f"write {_either(matches)}")
    if entry := _ENTRY.match(name):
        raise ConfigError(
            f"'{name}': one entry of the list '{entry[1]}' cannot be set",
            hint=f"give the whole list: --set '{entry[1]}=[FIRST, SECOND]'",
        )
    raise ConfigError(f"unknown key '{name}'", hint=_nearest(name, paths))


def _paths(kind: inspect.Type, prefix: str = "") -> Iterator[str]:
    for struct in _structs(kind):
        for key, inner in _keys(struct).items():
            yield prefix + key
            yield from _paths(inner, f"{prefix}{key}.")


def _assign(section: Any, kind: inspect.Type, keys: Sequence[str], value: Any) -> None:
    key, *deeper = keys
    if not isinstance(section, dict):
        raise ConfigError(f"cannot set '{key}' inside {section!r}", hint="only a section has keys to set")
    if not deeper:
        section[key] = value
        return _drop_keys_of_other_members(section, kind, key)
    if section.get(key) is None:
        section[key] = {}
    inner = tuple(_keys(struct)[key] for struct in _structs(kind) if key in _keys(struct))
    return _assign(section[key], inspect.UnionType(inner), deeper, value)


def _drop_keys_of_other_members(section: Tree, kind: inspect.Type, tag_field: str) -> None:
    for struct in _structs(kind):
        if struct.tag_field == tag_field and struct.tag == section[tag_field]:
            for stranger in section.keys() - _keys(struct).keys():
                del section[stranger]


def _complete(kind: inspect.Type, given: Any, default: Any, path: str) -> Any:
    """The tree `given` with its keys and choices checked, and what it leaves out taken from `default`."""
    if isinstance(given, dict) and _structs(kind):
        return _complete_struct(kind, given, default if isinstance(default, dict) else {}, path)
    for alternative in alternatives(kind):
        if isinstance(given, dict) and isinstance(alternative, inspect.DictType):
            inner = alternative.value_type
            return {key: _complete(inner, value, None, _join(path, key)) for key, value in given.items()}
        if isinstance(given, list) and isinstance(alternative, inspect.CollectionType):
            inner = alternative.item_type
            return [_complete(inner, value, None, f"{path}[{i}]") for i, value in enumerate(given)]
    _check_choice(kind, given, path)
    return given


def _complete_struct(kind: inspect.Type, given: Tree, default: Tree, path: str) -> Tree:
    struct = _chosen_struct(kind, given, default, path)
    keys = _keys(struct)
    is_default_member = struct.tag_field is None or default.get(struct.tag_field) == struct.tag
    complete = _defaults(struct) | (default if is_default_member else {})
    for key, value in given.items():
        if key not in keys:
            raise _unknown_key(key, struct, kind, path)
        complete[key] = _complete(keys[key], value, complete.get(key), _join(path, key))
    for key in keys.keys() - complete.keys():
        raise ConfigError(f"key '{_join(path, key)}' is missing", hint="it has no default: give it a value")
    return complete


def _chosen_struct(kind: inspect.Type, given: Tree, default: Tree, path: str) -> inspect.StructType:
    first, *others = _structs(kind)
    if not others or first.tag_field is None:
        return first
    tag = given.get(first.tag_field, default.get(first.tag_field))
    by_tag = {struct.tag: struct for struct in (first, *others)}
    if tag not in by_tag:
        raise _no_such_choice(_join(path, first.tag_field), tag, list(by_tag))
    return by_tag[tag]


def _defaults(struct: inspect.StructType) -> Tree:
    defaults: Tree = {} if struct.tag_field is None else {struct.tag_field: struct.tag}
    for field in struct.fields:
        if not field.required:
            value = field.default if field.default_factory is NODEFAULT else field.default_factory()
            defaults[field.encode_name] = msgspec.to_builtins(value)
    return defaults


def _check_choice(kind: inspect.Type, given: Any, path: str) -> None:
    """Check a value of an enumeration here: msgspec does not say what it would have accepted."""
    choices: list[Any] = []
    for alternative in alternatives(kind):
        match alternative:
            case inspect.LiteralType(values=values):
                choices += values
            case inspect.EnumType(cls=cls):
                choices += [member.value for member in cls]
            case inspect.NoneType():
                choices.append(None)
            case _:
                return
    if given not in choices:
        raise _no_such_choice(path, given, choices)


def _convert(tree: Tree, root: type[T]) -> T:
    try:
        return msgspec.convert(tree, root)
    except msgspec.ValidationError as error:
        raise _explained(error, tree) from error


def _explained(error: msgspec.ValidationError, tree: Tree) -> ConfigError:
    problem, _, where = str(error).partition(" - at `$")
    path = where.strip("`.")
    if error.__cause__ is not None:
        # A Struct's own check refused the values: its words are better than any made up here.
        return ConfigError(f"section '{path}': {problem}" if path else problem)
    problem = problem.replace("`", "").replace("object", "mapping").replace("array", "list").lower()
    if "[...]" in path:
        # msgspec does not say which entry of a dict it means, so there is no value to show.
        return ConfigError(f"'{path}' has a wrong value", hint=problem)
    return ConfigError(f"'{path}' cannot be {_value_at(tree, path)!r}", hint=problem.partition(", got")[0])


def _value_at(tree: Any, path: str) -> Any:
    for index, key in re.findall(r"\[(\d+)\]|([^.\[\]]+)", path):
        tree = tree[int(index)] if index else tree[key]
    return tree


def _unknown_key(key: object, struct: inspect.StructType, kind: inspect.Type, path: str) -> ConfigError:
    name = _join(path, key)
    owners = [other.tag for other in _structs(kind) if key in _keys(other)]
    if not owners:
        return ConfigError(
            f"unknown key '{name}'", hint=_nearest(name, [_join(path, k) for k in _keys(struct)])
        )
    return ConfigError(
        f"key '{name}' belongs to {struct.tag_field} {_either(owners)}, but '{path}' is '{struct.tag}'",
        hint=f"also set {path}.{struct.tag_field}={owners[0]}",
    )


def _no_such_choice(path: str, given: object, choices: Sequence[object]) -> ConfigError:
    if given is None:
        return ConfigError(f"'{path}' is not set", hint=f"it is {_either(choices)}")
    return ConfigError(f"'{path}' cannot be {given!r}", hint=f"it is {_either(choices)}")


def _nearest(name: str, keys: Sequence[str]) -> str:
    """A hint with the keys probably meant, compared by their last word too: a path may be given short."""
    words = [*keys, *(key.rpartition(".")[2] for key in keys)]
    last = name.rpartition(".")[2]
    parts = {part for part in last.split("_") if len(part) > 2}
    near = get_close_matches(name, words, n=1) or get_close_matches(last, words, n=1)
    # `gpu_count` has a word that is a key, though it resembles others more.
    named = [key for key in keys if {key.rpartition(".")[2], key.rstrip("s").rpartition(".")[2]} & parts]
    if not near and named:
        return f"did you mean {_either(named[:_MOST_MEANT])}?"
    if not near and len(keys) <= _MOST_LISTED:
        return f"known keys: {', '.join(keys)}"
    if not near:
        return f"the nearest keys are {', '.join(get_close_matches(last.lower(), keys, n=5, cutoff=0.0))}"
    return f"did you mean {_either(key for key in keys if f'.{key}'.endswith(f'.{near[0]}'))}?"


def _either(words: Iterable[object]) -> str:
    return " or ".join("null" if word is None else f"'{word}'" for word in words)


def _join(path: str, key: object) -> str:
    return f"{path}.{key}" if path else str(key)


def _keys(struct: inspect.StructType) -> dict[str, inspect.Type]:
    tag = {} if struct.tag_field is None else {struct.tag_field: inspect.LiteralType((struct.tag,))}
    return tag | {field.encode_name: field.type for field in struct.fields}


def _structs(kind: inspect.Type) -> list[inspect.StructType]:
    return [member for member in alternatives(kind) if isinstance(member, inspect.StructType)]


def alternatives(kind: inspect.Type) -> Iterator[inspect.Type]:
    """The types a value of type `kind` may have, without unions and constraints around them."""
    match kind:
        case inspect.UnionType(types=types):
            for member in types:
                yield from alternatives(member)
        case inspect.Metadata(type=inner):
            yield from alternatives(inner)
        case _:
            yield kind
