"""Rows of local files: JSON lines, JSON or msgpack (a list of rows), parquet where pyarrow is installed.

Knows endings and formats; what the columns mean is `rows`.
"""

import json
from collections.abc import Iterator
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


def _json_lines(path: Path) -> Iterator[dict[str, Any]]:
    with path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, start=1):
            if not line.isspace():
                yield _parsed(line, f"{path}, line {number}")


def _json(path: Path) -> Iterator[dict[str, Any]]:
    table = _parsed(path.read_text(encoding="utf-8"), str(path))
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


def _parsed(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise UserError(f"{where} is not JSON: {error}") from error


READERS = {
    ".jsonl": _json_lines,
    ".ndjson": _json_lines,
    ".json": _json,
    ".msgpack": _msgpack,
    ".parquet": _parquet,
}
"""The function that reads a file, by the file's ending."""
