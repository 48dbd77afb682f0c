"""The event log: everything control was told and what it decided, one JSON line each, append-only.

    {"history":2,"recipe":{...}}                                            the schema and the set-up
    {"seq":7,"decisions":1,"input":"Published","at":63.1,"version":1,...}   an input; one decision follows
    {"seq":7,"at":63.1,"decision":"Retire","version":0}                     which is this

Every line stands alone, so `grep '"Take"'` and `jq 'select(.decision == "Take").at'` work. The count tells
a run that ended between two lines from one that is complete: what a crash tore off at the end is left out
and reported (`torn_line`); damage anywhere else is an error that names its line. Knows the records, not
what they mean.
"""

import re
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

_INPUT_HEAD = re.compile(rb'\{"seq":(\d+),"decisions":(\d+),')
_DECISION_HEAD = re.compile(rb'\{"seq":(\d+),"at":[^,]+,')
"""What a line begins with before its record, as it is written."""

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(dict[str, Any]).decode
_decode_input = msgspec.json.Decoder(AnyInput).decode
_decode_decision = msgspec.json.Decoder(AnyDecision).decode


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


class _Torn(Exception):
    """The log breaks off in the middle of a line."""

    def __init__(self, line: int) -> None:
        super().__init__(line)
        self.line = line


class History:
    """A recorded run: its recipe, and its events in order as often as it is iterated over."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.recipe = build(Recipe, self._header(), str(path))
        self.torn_line: int | None = None
        """Number of the line where the log breaks off; None if it does not, or was not read to its end."""

    def __iter__(self) -> Iterator[Event]:
        self.torn_line = None
        with self._path.open("rb") as file:
            lines = enumerate(islice(file, 1, None), start=2)
            for seq, (number, line) in enumerate(lines):
                try:
                    count, event = self._input(number, line, seq)
                    decisions = [self._decision(*following, seq) for following in islice(lines, count)]
                except _Torn as torn:
                    self.torn_line = torn.line
                    return
                if len(decisions) < count:
                    self.torn_line = number + len(decisions)
                    return
                yield event, decisions

    def _input(self, number: int, line: bytes, seq: int) -> tuple[int, Input]:
        """An input, and how many decisions follow it."""
        if head := _INPUT_HEAD.match(line):
            self._check_seq(number, int(head[1]), seq)
            return int(head[2]), self._decoded(number, line, _decode_input, head.end())
        # Not as it is written, as from an editor: the same record in another order is the same.
        fields = self._decoded(number, line, _decode)
        self._check_seq(number, fields.pop("seq", None), seq)
        count = self._convert(number, fields.pop("decisions", 0), Count)
        return count, self._convert(number, fields, AnyInput)

    def _decision(self, number: int, line: bytes, seq: int) -> Decision:
        decision: Decision
        if head := _DECISION_HEAD.match(line):
            self._check_seq(number, int(head[1]), seq)
            decision = self._decoded(number, line, _decode_decision, head.end())
            return decision
        fields = self._decoded(number, line, _decode)
        self._check_seq(number, fields.pop("seq", None), seq)
        fields.pop("at", None)
        decision = self._convert(number, fields, AnyDecision)
        return decision

    def _check_seq(self, number: int, found: Any, seq: int) -> None:
        if found != seq:
            raise self._damage(number, f"its seq is {found} where {seq} is due")

    def _decoded(self, number: int, line: bytes, decode: Callable[[bytes], Any], begin: int = 0) -> Any:
        """What a line holds, behind its head if it has one; a last line that broke off raises _Torn."""
        try:
            return decode(b"{" + line[begin:] if begin else line)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            if not line.endswith(b"\n"):
                raise _Torn(number) from error
            raise self._damage(number, str(error)) from error

    def _convert(self, number: int, value: Any, kind: Any) -> Any:
        try:
            return msgspec.convert(value, kind, str_keys=True)
        except msgspec.ValidationError as error:
            raise self._damage(number, str(error)) from error

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
