"""Rows of local files: JSON lines, JSON or msgpack (a list of rows), parquet where pyarrow is installed.

A directory is its files one after the other, in the order of their names.

Knows endings and formats; what the columns mean is `rows`.
"""

import json
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import msgspec

from dora_rl.core.errors import UserError
from dora_rl.core.named import optional_module


def read_file(path: Path) -> Iterator[dict[str, Any]]:
    """The raw rows of a file, in the file's order."""
    if not path.is_file():
        raise UserError(f"there is no file {path}", hint="check the path")
    return READERS[path.suffix](path)


def read_directory(directory: Path) -> Iterator[dict[str, Any]]:
    """The raw rows of all files of a directory, also of directories in it, in the order of their paths."""
    found = [path for path in sorted(directory.rglob("*")) if path.suffix in READERS and path.is_file()]
    kinds = sorted({path.suffix for path in found})
    if not found:
        raise UserError(
            f"{directory} has no files of rows", hint=f"endings that are read: {', '.join(READERS)}"
        )
    if len(kinds) > 1:
        raise UserError(
            f"{directory} has files of several kinds ({', '.join(kinds)}), and which are rows is not clear",
            hint="name one file, or a directory with files of one kind",
        )
    return chain.from_iterable(map(read_file, found))


def _json_lines(path: Path) -> Iterator[dict[str, Any]]:
    with path.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            if not line.isspace():
                yield _parsed(line.rstrip(), f"{path}, line {number}")


def _json(path: Path) -> Iterator[dict[str, Any]]:
    table = _parsed(path.read_bytes(), str(path))
    if not isinstance(table, list):
        raise UserError(f"{path} is not a list of rows", hint="for one object a line use the ending .jsonl")
    yield from table


def _parquet(path: Path) -> Iterator[dict[str, Any]]:
    parquet = optional_module("pyarrow.parquet", needed_for=f"reading {path}", install="pyarrow")
    try:
        with parquet.ParquetFile(path) as file:
            for batch in file.iter_batches():
                yield from batch.to_pylist()
    except OSError as error:  # damage is an ArrowInvalid, which pyarrow derives from ValueError
        raise UserError(f"{path} cannot be read: {error}") from error
    except ValueError as error:
        raise UserError(f"{path} is not a parquet file: {error}") from error


def _msgpack(path: Path) -> Iterator[dict[str, Any]]:
    """Rows from a file of one msgpack list, in which a Python program hands over its own rows."""
    try:
        yield from msgspec.msgpack.decode(path.read_bytes())
    except (msgspec.DecodeError, TypeError) as error:
        raise UserError(f"{path} is not a list of rows in msgpack: {error}") from error


def _parsed(content: bytes, where: str) -> Any:
    try:
        # Windows programs begin a file with a mark that is no JSON.
        return json.loads(content.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise UserError(
            f"{where} is not UTF-8: byte {error.object[error.start]:#04x} at position {error.start}",
            hint="write the file anew as UTF-8: iconv -f latin1 -t utf-8 FILE, if it is latin1",
        ) from error
    except RecursionError as error:
        raise UserError(
            f"{where} is nested too deeply to be read", hint="give such a column as text"
        ) from error
    except json.JSONDecodeError as error:
        # Lines are counted in `where`, or are those of a whole file.
        place = f"line {error.lineno}, column {error.colno}" if error.lineno > 1 else f"column {error.colno}"
        raise UserError(
            f"{where} is not JSON: {error.msg.lower()} at {place}",
            hint="a .jsonl file has one object a line, a .json file a list of them: json.dumps writes both",
        ) from error
    except ValueError as error:  # a number of too many digits
        raise UserError(f"{where} is not JSON: {error}", hint="give such a number as text") from error


READERS = {
    ".jsonl": _json_lines,
    ".ndjson": _json_lines,
    ".json": _json,
    ".msgpack": _msgpack,
    ".parquet": _parquet,
}
"""The function that reads a file, by the file's ending."""
