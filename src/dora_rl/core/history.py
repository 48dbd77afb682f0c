"""The event log: everything control was told and what it decided, one JSON line each, append-only.

    {"history":2,"recipe":{...}}                                            the schema and the set-up
    {"seq":7,"decisions":1,"input":"Published","at":63.1,"version":1,...}   an input; one decision follows
    {"seq":7,"at":63.1,"decision":"Retire","version":0}                     which is this

Every line stands alone, so `grep '"Take"'` and `jq 'select(.decision == "Take").at'` work. The count tells
a run that ended between two lines from one that is complete: what a crash tore off at the end is left out
and reported (`torn_line`); damage anywhere else is an error that names its line. Knows the records, not
what they mean.
"""

from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec

from dora_rl.core.decisions import AnyDecision, Decision
from dora_rl.core.errors import UserError
from dora_rl.core.inputs import AnyInput, Input
from dora_rl.core.recipe import Count, Recipe
from dora_rl.core.struct_loader import Tree, build, to_dict

SCHEMA = 2
"""Number of the event log's format, raised when lines written before can no longer be read."""

Event = tuple[Input, list[Decision]]
"""One input and the decisions that control made about it, in order."""

Watcher = Callable[[Input, list[Decision]], None]
"""A function called with every input and its decisions; in a live run once both are durable."""

_Line = tuple[int, dict[str, Any]]


_encode = msgspec.json.Encoder().encode


def encode_header(recipe: Recipe) -> bytes:
    """The first line of an event log: its schema and the recipe."""
    return _encode({"history": SCHEMA, "recipe": to_dict(recipe)}) + b"\n"


def encode_event(seq: int, event: Input, decisions: list[Decision]) -> bytes:
    """The lines of an event log for one input and its decisions."""
    lines = [b'{"seq":%d,"decisions":%d,%b\n' % (seq, len(decisions), _encode(event)[1:])]
    lines += [b'{"seq":%d,"at":%b,%b\n' % (seq, _encode(event.at), _encode(d)[1:]) for d in decisions]
    return b"".join(lines)


class HistoryWriter:
    """Writes the event log of one run; its `watch` is a `Watcher`."""

    def __init__(self, path: Path, recipe: Recipe, *, num_written: int | None = None) -> None:
        """Begin an event log, or go on with one that holds exactly `num_written` whole events."""
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("wb" if num_written is None else "ab")
        except OSError as error:
            raise UserError(f"cannot write {path}: {error.strerror}", hint="choose another place") from error
        self._seq = num_written or 0
        if num_written is None:
            self._file.write(encode_header(recipe))

    def watch(self, event: Input, decisions: list[Decision]) -> None:
        self._file.write(encode_event(self._seq, event, decisions))
        self._seq += 1

    def flush(self) -> None:
        """Write out what is buffered, so that readers of a live run see it."""
        self._file.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()


class History:
    """A recorded run: its recipe, and its events in order as often as it is iterated over."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.recipe = build(Recipe, self._header(), str(path))
        self.torn_line: int | None = None
        """Number of the line where the log breaks off; None if it does not, or was not read to its end."""

    def __iter__(self) -> Iterator[Event]:
        lines = self._lines()
        for seq, (number, fields) in enumerate(lines):
            count = self._convert(number, fields.pop("decisions", 0), Count)
            event = self._record(number, fields, seq, AnyInput)
            decisions = [self._decision(line, seq) for line in islice(lines, count)]
            if len(decisions) < count:
                self.torn_line = self.torn_line or number + len(decisions)
                return
            yield event, decisions

    def _decision(self, line: _Line, seq: int) -> Decision:
        number, fields = line
        fields.pop("at", None)
        decision: Decision = self._record(number, fields, seq, AnyDecision)
        return decision

    def _record(self, number: int, fields: dict[str, Any], seq: int, kind: Any) -> Any:
        found = fields.pop("seq", None)
        if found != seq:
            raise self._damage(number, f"its seq is {found} where {seq} is due")
        return self._convert(number, fields, kind)

    def _convert(self, number: int, value: Any, kind: Any) -> Any:
        try:
            return msgspec.convert(value, kind, str_keys=True)
        except msgspec.ValidationError as error:
            raise self._damage(number, str(error)) from error

    def _lines(self) -> Iterator[_Line]:
        """Each line after the first, decoded, with its number; a torn line ends them."""
        self.torn_line = None
        decode = msgspec.json.Decoder(dict[str, Any]).decode
        with self._path.open("rb") as file:
            for number, line in enumerate(islice(file, 1, None), start=2):
                try:
                    fields = decode(line)
                except (msgspec.DecodeError, UnicodeDecodeError) as error:
                    if line.endswith(b"\n"):
                        raise self._damage(number, str(error)) from error
                    self.torn_line = number
                    return
                yield number, fields

    def _header(self) -> Tree:
        """The recipe in the log's first line, if its schema can be read."""
        try:
            with self._path.open("rb") as file:
                header = msgspec.json.decode(file.readline())
        except OSError as error:
            raise UserError(f"cannot read {self._path}: {error.strerror}", hint="check the path") from error
        except (msgspec.DecodeError, UnicodeDecodeError):
            header = None
        match header:
            case {"history": int(schema), "recipe": dict(recipe)} if schema == SCHEMA:
                return recipe
            case {"history": schema}:
                raise UserError(
                    f"{self._path} is an event log of schema {schema}; this version reads {SCHEMA}",
                    hint="use the version of dora-rl that wrote it",
                )
        raise UserError(f"{self._path} is no event log", hint="`dora simulate --log PATH` writes one")

    def _damage(self, number: int, problem: str) -> UserError:
        return UserError(
            f"{self._path}, line {number}: {problem}", hint="the event log was altered or damaged"
        )
