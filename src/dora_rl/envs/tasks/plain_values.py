"""Python values as plain data and back, with what MessagePack and JSON do not keep: tuples, and keys that are
not strings. For entries whose scorers compare them with their own."""

from typing import Any


def packed(value: Any) -> Any:
    """The value as lists, mappings, strings and numbers; what has no such form becomes its text."""
    match value:
        case tuple():
            return {"tuple": [packed(each) for each in value]}
        case list():
            return [packed(each) for each in value]
        case dict():
            return {"dict": [[packed(key), packed(each)] for key, each in value.items()]}
        case None | bool() | int() | float() | str():
            return value
    return str(value)


def unpacked(plain: Any) -> Any:
    """The Python value that `packed` turned into plain data."""
    match plain:
        case {"tuple": items}:
            return tuple(unpacked(each) for each in items)
        case {"dict": pairs}:
            return {unpacked(key): unpacked(each) for key, each in pairs}
        case list():
            return [unpacked(each) for each in plain]
    return plain
