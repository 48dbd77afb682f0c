"""A row: a prompt and free columns, as plain data with a number that never changes.

The number is the row's place in its source. Randomness is keyed by it, so leaving rows out or reordering
them changes no other row's draws.
"""

from collections.abc import Iterable, Iterator, Mapping
from types import NoneType
from typing import Any

import msgspec

from dora_rl.core.errors import UserError
from dora_rl.core.named import did_you_mean
from dora_rl.core.record import Record

Messages = list[dict[str, Any]]
"""A chat in OpenAI's form: a list of mappings with `role` and `content`."""
Prompt = str | Messages
"""The prompt of a row: a string, or a chat."""

RESERVED = ("prompts", "completions", "completion_ids", "trainer_state", "log_metric", "log_extra")
"""Keywords that a reward function gets from the run, which no column may be called."""


class Row(Record, frozen=True):
    """One row of a data set: its number, its prompt and its other columns."""

    row: int
    prompt: Prompt
    columns: dict[str, Any]
    """All columns but the prompt, by the name a reward function gets them under."""

    @property
    def is_conversational(self) -> bool:
        """Whether the prompt is a chat."""
        return not isinstance(self.prompt, str)


def read_rows(table: Iterable[Mapping[str, Any]], columns: Mapping[str, str], source: str) -> list[Row]:
    """Every row of a table, checked, its columns renamed by `{new: old}`."""
    raws = list(table)
    if not raws:
        raise UserError(f"{source} has no rows")
    _check_renaming(raws, columns, source)
    taken, rows = {*columns, *columns.values()}, list[Row]()
    for number, raw in enumerate(raws):
        where = f"{source}, row {number}"
        if not isinstance(raw, Mapping):
            raise no_mapping(raw, where)
        values = {str(name): value for name, value in raw.items() if name not in taken}
        values |= {new: raw[old] for new, old in columns.items() if old in raw}
        _check_names(values, raw, where)
        plain = {name: plain_value(value, f"{where}, column '{name}'") for name, value in values.items()}
        rows.append(Row(row=number, prompt=_prompt(plain.pop("prompt"), where), columns=plain))
    return rows


def with_all_columns(*parts: list[Row]) -> Iterator[list[Row]]:
    """The same rows with the same columns: one that only some rows have is None in the others."""
    names = dict.fromkeys(name for rows in parts for row in rows for name in row.columns)
    for rows in parts:
        yield [
            row
            if len(row.columns) == len(names)
            else msgspec.structs.replace(row, columns=dict.fromkeys(names) | row.columns)
            for row in rows
        ]


def _check_names(values: Mapping[str, Any], raw: Mapping[str, Any], where: str) -> None:
    if "prompt" not in values:
        known = [str(name) for name in raw]
        raise UserError(
            f"{where} has no column 'prompt' (its columns: {', '.join(known)})",
            hint="map the column that holds it: columns: {prompt: NAME}",
        )
    for name in RESERVED:
        if name in values:
            raise UserError(
                f"{where} has a column '{name}', which a reward function gets from the run",
                hint=f"give it another name: columns: {{{name}_column: {name}}}",
            )


def _check_renaming(raws: list[Mapping[str, Any]], columns: Mapping[str, str], source: str) -> None:
    known = list(dict.fromkeys(str(name) for raw in raws if isinstance(raw, Mapping) for name in raw))
    for new, old in columns.items():
        if old not in known:
            raise UserError(
                f"{source} has no column '{old}' to read as '{new}'",
                hint=did_you_mean(old, known, "its columns"),
            )


def no_mapping(raw: Any, where: str) -> UserError:
    """The error about a row that has no columns."""
    return UserError(
        f"{where} is not a mapping of columns: {raw!r:.80}",
        hint="a row is a mapping with a 'prompt'; of a DataFrame give df.to_dict('records')",
    )


def plain_value(value: Any, where: str) -> Any:
    """The value as it will reach a reward function in another process: of an array, lists and numbers."""
    if type(value) in (str, int, float, bool, NoneType):
        return value
    try:
        return msgspec.msgpack.decode(msgspec.msgpack.encode(value, enc_hook=_builtin))
    except (TypeError, ValueError, OverflowError) as error:
        raise UserError(
            f"{where} is not plain data: {error}", hint="use numbers, strings, lists and mappings"
        ) from error


def _builtin(value: Any) -> Any:
    """An array of numpy or torch, or a number out of one, as Python's own."""
    if not hasattr(value, "tolist"):
        raise TypeError(f"{type(value).__name__} is of no such kind")
    return value.tolist()


def _prompt(value: Any, where: str) -> Prompt:
    if isinstance(value, str):
        return value
    is_chat = (
        isinstance(value, list)
        and value
        and all(isinstance(message, dict) and isinstance(message.get("role"), str) for message in value)
    )
    if not is_chat:
        raise UserError(
            f"{where}: the prompt is neither a string nor a list of messages: {value!r:.80}",
            hint="a message is {role: user, content: ...}",
        )
    messages: Messages = value
    return messages
