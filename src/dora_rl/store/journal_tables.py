"""SQL statements on the journal's tables. Run inside a transaction of the caller's."""

import sqlite3
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from dora_rl.store.database import named_errors
from dora_rl.store.responses import Chunk

SqlRow = tuple[Any, ...]

_CHUNK = ", ".join(Chunk._fields)
OF_BATCH = "(SELECT t.id FROM trajectories t JOIN groups g ON g.id = group_id WHERE batch = ?)"
"""The trajectories of a batch, in SQL."""


class Tables:
    """SQL statements that several kinds of records need."""

    def __init__(self, db: sqlite3.Connection, path: Path) -> None:
        self._db = db
        self._path = path
        # Journals from before there were streams have no such table, and need none.
        found = self.one("SELECT 1 FROM sqlite_master WHERE name = 'streamed_rows'")
        self._has_streamed_rows = found is not None

    def do(self, statement: str, *values: Any) -> int:
        """Execute one statement and return the number of rows it changed."""
        with named_errors(self._path):
            return self._db.execute(statement, values).rowcount

    def do_all(self, statement: str, rows: Iterable[SqlRow]) -> None:
        """Execute one statement for each of the rows."""
        with named_errors(self._path):
            self._db.executemany(statement, rows)

    def one(self, statement: str, *values: Any) -> SqlRow | None:
        """The first row of a query; None if there is none."""
        with named_errors(self._path):
            row: SqlRow | None = self._db.execute(statement, values).fetchone()
        return row

    def each(self, statement: str, *values: Any) -> Iterator[SqlRow]:
        """All rows of a query."""
        # All at once: a cursor left open would keep SQLite from reusing its log.
        with named_errors(self._path):
            return iter(self._db.execute(statement, values).fetchall())

    def num_events(self) -> int:
        found = self.one("SELECT max(seq) + 1 FROM events")
        return int(found[0] or 0) if found else 0

    # --- tokens ---

    def insert_chunk(self, chunk: Chunk) -> None:
        self.do(f"INSERT INTO chunks ({_CHUNK}) VALUES (?, ?, ?, ?, ?, ?)", *chunk)

    def chunks(self, trajectory: int) -> list[Chunk]:
        rows = self.each(f"SELECT {_CHUNK} FROM chunks WHERE trajectory = ? ORDER BY start", trajectory)
        return [Chunk(*row) for row in rows]

    def insert_experts(self, trajectory: int, branch: int, start: int, experts: bytes) -> None:
        self.do(
            "INSERT INTO experts (trajectory, branch, start, experts) VALUES (?, ?, ?, ?)",
            trajectory,
            branch,
            start,
            experts,
        )

    def experts(self, trajectory: int) -> dict[tuple[int, int], bytes]:
        """What is recorded of the experts of a trajectory's tokens, by branch and first token."""
        rows = self.each("SELECT branch, start, experts FROM experts WHERE trajectory = ?", trajectory)
        return {(branch, start): experts for branch, start, experts in rows}

    def drop_experts(self, trajectory: int) -> None:
        self.do("DELETE FROM experts WHERE trajectory = ?", trajectory)

    def drop_chunks(self, trajectory: int) -> None:
        self.do("DELETE FROM chunks WHERE trajectory = ?", trajectory)

    def drop_response(self, trajectory: int) -> None:
        self.do("DELETE FROM responses WHERE trajectory = ?", trajectory)

    def drop_prompt(self, group: int) -> None:
        """Drop the prompt of a group that nothing asks for again, with its row where that was streamed."""
        self.do("DELETE FROM prompts WHERE group_id = ?", group)
        if self._has_streamed_rows:
            # A row of a stream comes once, so no other group has it.
            self.do("DELETE FROM streamed_rows WHERE row = (SELECT row FROM groups WHERE id = ?)", group)

    # --- versions ---

    def newest_version(self) -> int:
        """Number of versions published, which is also the number of the batch in training, if any."""
        found = self.one("SELECT max(number) + 1 FROM batches WHERE is_published")
        return int(found[0] or 0) if found else 0

    def has_batch(self, number: int) -> bool:
        return self.one("SELECT 1 FROM batches WHERE number = ?", number) is not None
