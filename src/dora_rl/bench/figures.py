"""A table as plain data: for a terminal, a file or a test."""

from collections.abc import Callable

from dora_rl.core.record import Record

Cell = str | float | int | None
Say = Callable[[str], None]
"""A function that prints a line of progress."""


class Figures(Record, frozen=True):
    """The table that one section of a benchmark measured."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    note: str = ""

    def __post_init__(self) -> None:
        widths = {len(row) for row in self.rows}
        assert widths <= {len(self.columns)}, f"rows of {widths} cells under {len(self.columns)} columns"
