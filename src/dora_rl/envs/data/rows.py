"""A row: a prompt and free columns, as plain data with a number that never changes.

The number is the row's place in its source. Randomness is keyed by it, so leaving rows out or reordering
them changes no other row's draws.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
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


SOURCE_COLUMN = "data_source"
"""The column that says from which of several tables a row is, unless the rows have one of that name."""

_MAX_DEPTH = 64
"""Levels of lists and mappings in a column: what is deeper cannot be read again in every process."""


class Row(Record, frozen=True):
    """One row of a data set: its number, its prompt and its other columns."""

    row: int
    prompt: Prompt | None
    """What the policy is asked; None in rows of episodes that say it themselves."""
    columns: dict[str, Any]
    """All columns but the prompt, by the name a reward function gets them under."""

    @property
    def is_conversational(self) -> bool:
        """Whether the prompt is a chat."""
        return isinstance(self.prompt, list)


def read_rows(
    table: Iterable[Mapping[str, Any]], columns: Mapping[str, str], source: str, *, needs_prompt: bool = True
) -> list[Row]:
    """Every row of a table, checked, its columns renamed by `{new: old}`."""
    raws = list(table)
    if not raws:
        raise UserError(f"{source} has no rows", hint="a row has a 'prompt', and columns for the rewards")
    check_renaming(raws, columns, source)
    return [
        read_row(raw, columns, number, source, needs_prompt=needs_prompt) for number, raw in enumerate(raws)
    ]


def read_row(
    raw: Mapping[str, Any],
    columns: Mapping[str, str],
    number: int,
    source: str,
    *,
    needs_prompt: bool = True,
) -> Row:
    """The row with this number in its source, checked, its columns renamed by `{new: old}`."""
    where = f"{source}, row {number}"
    if not isinstance(raw, Mapping):
        raise no_mapping(raw, where)
    taken = {*columns, *columns.values()}
    values = {str(name): value for name, value in raw.items() if name not in taken}
    values |= {new: raw[old] for new, old in columns.items() if old in raw}
    _check_names(values, raw, where, needs_prompt)
    plain = {name: plain_value(value, f"{where}, column '{name}'") for name, value in values.items()}
    prompt = plain.pop("prompt", None)
    is_absent = prompt is None and not needs_prompt
    return Row(row=number, prompt=None if is_absent else _prompt(prompt, where), columns=plain)


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


def _check_names(values: Mapping[str, Any], raw: Mapping[str, Any], where: str, needs_prompt: bool) -> None:
    if needs_prompt and "prompt" not in values:
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


def check_renaming(raws: Sequence[Mapping[str, Any]], columns: Mapping[str, str], source: str) -> None:
    """Refuse to rename a column that none of these rows has."""
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
    if type(value) in (int, float, bool, NoneType) or (type(value) is str and value.isascii()):
        return value
    try:
        plain = msgspec.msgpack.decode(msgspec.msgpack.encode(value, enc_hook=_builtin))
    except UnicodeEncodeError as error:
        half = ascii(error.object[error.start])[1:-1]
        raise UserError(
            f"{where} is no text: {half} is half of a character (a lone surrogate)",
            hint="it was cut in the middle, or read with errors='surrogateescape': write it anew",
        ) from error
    except RecursionError as error:
        raise _too_deep(where) from error
    except (TypeError, ValueError, OverflowError) as error:
        raise UserError(
            f"{where} is not plain data: {error}", hint="use numbers, strings, lists and mappings"
        ) from error
    if _is_deeper(plain, _MAX_DEPTH):
        raise _too_deep(where)
    return plain


def _is_deeper(value: Any, levels: int) -> bool:
    """Whether lists and mappings are nested more than so many levels deep."""
    if not isinstance(value, list | dict):
        return False
    inner = value.values() if isinstance(value, dict) else value
    return not levels or any(_is_deeper(each, levels - 1) for each in inner)


def _too_deep(where: str) -> UserError:
    return UserError(
        f"{where} is nested more than {_MAX_DEPTH} levels deep", hint="give it as text, in JSON for example"
    )


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
    for number, message in enumerate(messages):
        if not isinstance(message.get("content"), str | list) and not message.get("tool_calls"):
            has = "no 'content'" if message.get("content") is None else "a 'content' that is no text"
            raise UserError(
                f"{where}: message {number} of the prompt, by '{message['role']}', has {has}",
                hint="a message is {role: user, content: ...}",
            )
    return messages
