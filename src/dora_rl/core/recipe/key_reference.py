"""Every key of a recipe: its type, its default and what it means, read from the schema and the docstrings.

A key has one description, the docstring below its field; `docs/reference.md` and `dora keys` show it. Knows
no key in particular.
"""

import ast
import inspect
import textwrap
from collections.abc import Iterator
from functools import cache
from typing import Any

import msgspec
from msgspec import NODEFAULT
from msgspec import inspect as schema

from dora_rl.core.record import Record
from dora_rl.core.struct_loader import alternatives

_HEAD = """# Reference: every key of a recipe

Written by `make docs` from the schema and the docstrings of its fields; `dora keys` shows the same in a
terminal, `dora keys optimizer` one section. How a recipe is read, shortened and overridden:
[recipes.md](recipes.md).
"""


class Key(Record, frozen=True, gc=True):
    """One key of a recipe's section, as the reference shows it."""

    name: str
    type: str
    """The values that the key accepts, in words."""
    default: str
    """The key's default as it is written in a recipe; a dash where a value has to be given."""
    meaning: str
    """The docstring of the key's field, or of the section that the key holds."""


class SectionKeys(Record, frozen=True, gc=True):
    """A section of the recipe, or one kind of a section that has several."""

    path: str
    """Dotted path of the section; empty for the keys at the top."""
    kind: str | None
    """Name of this kind where the section has several; None where there is only one."""
    meaning: str
    keys: tuple[Key, ...]

    @property
    def title(self) -> str:
        """The section's heading in the reference."""
        return f"{self.path or 'At the top'}{f', kind: {self.kind}' if self.kind else ''}"


def sections(root: type[msgspec.Struct]) -> Iterator[SectionKeys]:
    """The keys at the top, then every section below, in the order of the tree."""
    yield from _sections(schema.type_info(root), "")


def _sections(kind: schema.Type, path: str) -> Iterator[SectionKeys]:
    structs = [each for each in alternatives(kind) if isinstance(each, schema.StructType)]
    for struct in structs:
        yield SectionKeys(
            path=path,
            kind=str(struct.tag) if struct.tag_field else None,
            meaning=_flat(struct.cls.__doc__ or ""),
            keys=tuple(_key(struct, field) for field in struct.fields),
        )
        for field in struct.fields:
            yield from _sections(_held(field.type), f"{path}.{field.encode_name}".lstrip("."))


def _key(struct: schema.StructType, field: schema.Field) -> Key:
    inner = [each for each in alternatives(_held(field.type)) if isinstance(each, schema.StructType)]
    own = field_docs(struct.cls).get(field.name, "")
    return Key(
        name=field.encode_name,
        type=_words(field.type),
        default=_default(field, is_section=bool(inner)),
        meaning=own or (_flat(inner[0].cls.__doc__ or "") if len(inner) == 1 else ""),
    )


def _held(kind: schema.Type) -> schema.Type:
    """The type of a list's items, or of a mapping's values; any other type itself."""
    for each in alternatives(kind):
        if isinstance(each, schema.DictType) and isinstance(each.value_type, schema.StructType):
            return each.value_type
        if isinstance(each, schema.VarTupleType | schema.ListType):
            return each.item_type
    return kind


@cache
def field_docs(cls: type) -> dict[str, str]:
    """The docstrings below the fields of a class and of its bases, by field."""
    docs: dict[str, str] = {}
    for each in reversed(cls.__mro__):
        if issubclass(each, msgspec.Struct) and each.__module__.startswith("dora_rl."):
            docs |= _own_docs(each)
    return docs


def _own_docs(cls: type) -> dict[str, str]:
    (tree,) = ast.parse(textwrap.dedent(inspect.getsource(cls))).body
    assert isinstance(tree, ast.ClassDef), f"{cls} is a class"
    docs = {}
    for statement, below in zip(tree.body, tree.body[1:], strict=False):
        match statement, below:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                docs[name] = _flat(text)
    return docs


def _default(field: schema.Field, *, is_section: bool) -> str:
    if field.required:
        return "-"
    made = field.default if field.default_factory is NODEFAULT else field.default_factory()
    value: Any = msgspec.to_builtins(made)
    if is_section and value and isinstance(value, dict):
        return f"kind: {value['kind']}" if "kind" in value else "see below"
    return "null" if value is None else msgspec.json.encode(value).decode()


def _words(kind: schema.Type) -> str:
    """A type in words, as a reader of YAML would say it."""
    return " or ".join(dict.fromkeys(_word(each) for each in alternatives(kind)))


def _word(kind: schema.Type) -> str:
    match kind:
        case schema.StructType():
            return "a section"
        case schema.LiteralType(values=values):
            return " or ".join(f"`{value}`" for value in values)
        case schema.IntType():
            return f"an integer{_bounds(kind)}"
        case schema.FloatType():
            return f"a number{_bounds(kind)}"
        case schema.BoolType():
            return "true or false"
        case schema.StrType():
            return "text"
        case schema.NoneType():
            return "null"
        case schema.DictType(value_type=schema.StructType()):
            return "a mapping of names to sections"
        case schema.DictType():
            return "a mapping"
        case schema.VarTupleType(item_type=item) | schema.ListType(item_type=item):
            return f"a list, each {_words(item)}"
    return "anything"


def _bounds(kind: schema.IntType | schema.FloatType) -> str:
    names = {"ge": "at least", "gt": "above", "le": "at most", "lt": "below"}
    found = [
        f"{words} {bound:g}" for name, words in names.items() if (bound := getattr(kind, name)) is not None
    ]
    return f" {' and '.join(found)}" if found else ""


def _flat(text: str) -> str:
    return " ".join(text.split())


def reference(root: type[msgspec.Struct]) -> str:
    """The whole reference of recipe keys, in Markdown."""
    return "\n".join([_HEAD, *map(_markdown, sections(root))])


def _markdown(section: SectionKeys) -> str:
    lines = [f"## {section.title}", "", section.meaning, ""]
    if section.keys:
        lines += ["| key | type | default | meaning |", "|---|---|---|---|"]
        lines += [_row(key) for key in section.keys]
        lines.append("")
    return "\n".join(lines)


def _row(key: Key) -> str:
    default = key.default if key.default in ("-", "see below") else f"`{key.default}`"
    cells = (f"`{key.name}`", key.type, default, key.meaning)
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"
