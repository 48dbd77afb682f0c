"""Notes down which module reads which key of a recipe, in this process, one line each to a file.

A key is a field of one of the recipe's Structs. Copying, comparing and encoding whole records goes by
msgspec's offsets and is not noticed; a field read from Python is. Reading a key only to check it, to write it
out, to count bytes for the plan or to show it is no use of it: these modules are passed over.
"""

import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import msgspec
from msgspec import inspect as schema

from dora_rl.core.recipe import Recipe
from dora_rl.core.struct_loader import alternatives

_RECIPE = "dora_rl.core.recipe."
NO_READERS = {
    f"{_RECIPE}free_options",
    f"{_RECIPE}resolution",
    f"{_RECIPE}unused_keys",
    "dora_rl.observe.plan_view",
    "dora_rl.observe.run_plan_view",
    "dora_rl.observe.simulation_summary",
    "dora_rl.prepare.completion",
    "dora_rl.prepare.disk",
    "dora_rl.prepare.trainer_memory",
    "dora_rl.prepare.ways_to_fit",
    "dora_rl.run.resume_changes",
}
"""Modules that look at keys and do nothing by them."""


class RecordedField:
    """A field of a Struct that notes who reads it."""

    def __init__(self, member: Any, name: str, lines: "Lines") -> None:
        self._member = member
        self._name = name
        self._lines = lines

    def __get__(self, record: Any, owner: type) -> Any:
        if record is None:
            return self._member
        reader = reader_of(sys._getframe(1))
        if reader is not None:
            self._lines.add(f"{type(record).__name__}.{self._name} {reader}")
        return self._member.__get__(record)

    def __set__(self, record: Any, value: Any) -> None:
        self._member.__set__(record, value)


class Lines:
    """A file to which every line is added once; several processes may add to it."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("a", buffering=1, encoding="utf-8")
        self._seen: set[str] = set()

    def add(self, line: str) -> None:
        if line not in self._seen:
            self._seen.add(line)
            self._file.write(f"{line}\n")


def reader_of(frame: FrameType | None) -> str | None:
    """The module on whose behalf a field is read; None where nothing is done by it.

    What the recipe derives from its own fields, whoever asked for it has read.
    """
    while frame is not None:
        module = str(frame.f_globals.get("__name__", ""))
        if module == "__main__" and frame.f_globals.get("__spec__") is not None:
            module = frame.f_globals["__spec__"].name
        if module in NO_READERS or frame.f_code.co_name == "__post_init__":
            return None
        if not module.startswith(_RECIPE):
            return module if module.startswith("dora_rl.") else None
        frame = frame.f_back
    return None


def structs(kind: schema.Type | None = None) -> Iterator[type[msgspec.Struct]]:
    """The Struct of the recipe and those of its sections, each once for every place it has."""
    for each in alternatives(kind or schema.type_info(Recipe)):
        match each:
            case schema.StructType(cls=cls, fields=fields):
                yield cls
                for field in fields:
                    yield from structs(field.type)
            case schema.VarTupleType(item_type=inner) | schema.ListType(item_type=inner):
                yield from structs(inner)


def install(path: Path) -> None:
    """Note from now on in this process who reads a key."""
    lines = Lines(path)
    for struct in {base for each in structs() for base in each.__mro__ if issubclass(base, msgspec.Struct)}:
        for name in set(struct.__struct_fields__) & struct.__dict__.keys():
            setattr(struct, name, RecordedField(struct.__dict__[name], name, lines))
