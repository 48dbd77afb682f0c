"""What a caller has in memory, made readable for other processes: rows and a model lie in files meanwhile."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from dora_rl.api.arguments import Asked
from dora_rl.envs.data.rows import no_mapping, plain_value
from dora_rl.envs.data.sources import read_whole
from dora_rl.launch.temporary import temporary_directory
from dora_rl.prepare.messages import Given


@contextmanager
def given_in_files(asked: Asked, objects: dict[str, bytes]) -> Iterator[Given]:
    """Rows and model of a call in files, and its packed functions; nothing is left when the block ends."""
    with temporary_directory("dora-given-") as place:
        tables: dict[str, str] = {}
        if asked.model is not None:
            asked.model.save(place / "model")
        for number, (name, rows) in enumerate(asked.tables.items()):
            write_table(rows, place / f"{number}.msgpack")
            tables[name] = str(place / f"{number}.msgpack")
        model = str(place / "model") if asked.model is not None else None
        yield Given(objects=objects, tables=tables, model=model)


def write_table(rows: Iterable[Any], path: Path) -> None:
    """Write rows of the caller's as one list in msgpack; a UserError where one is no plain data."""
    whole = read_whole(rows, "data", "give the function that yields them, data=rows and not data=rows(),")
    table = [_plain_row(row, f"data, row {number}") for number, row in enumerate(whole)]
    path.write_bytes(msgspec.msgpack.encode(table))


def _plain_row(row: Any, where: str) -> dict[str, Any]:
    if not isinstance(row, Mapping):
        raise no_mapping(row, where)
    return {str(name): plain_value(value, f"{where}, column '{name}'") for name, value in row.items()}
