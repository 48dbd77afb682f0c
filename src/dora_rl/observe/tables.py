"""Tables: their look in the terminal, and CSV files for everything else that reads them."""

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path

from rich import box
from rich.table import Table

Cell = str | int | float | bool | None


def table(title: str, *columns: str, caption: str = "") -> Table:
    """An empty table: words on the left, numbers on the right. A column named `>x` holds numbers."""
    made = Table(
        title=title,
        caption=caption or None,
        box=box.SIMPLE_HEAD,
        title_justify="left",
        title_style="bold",
        caption_justify="left",
        collapse_padding=True,
    )
    for column in columns:
        made.add_column(column.removeprefix(">"), justify="right" if column.startswith(">") else "left")
    return made


def write_csv(path: Path, rows: Sequence[Mapping[str, Cell]]) -> Path:
    """Write rows as CSV under a header of their keys, which must be the same for all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return path
