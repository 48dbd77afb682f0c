"""The journal's SQLite file: its tables, how it is opened, and what its errors mean.

Knows SQL and files, not what the records say. A transaction is on the disk when it returns, or is not there
at all: on a disk of this machine by a write-ahead log with `synchronous=FULL`, on storage that machines share
by a rollback journal with `synchronous=EXTRA`, which flushes also the directory it is deleted from. SQLite
keeps sums of its log, and none of what is in the file: every row has one of its own (`row_sum`), which is
made as it is written and compared when a run goes on.
"""

import sqlite3
import zlib
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import msgspec

from dora_rl.store.durable import disk_full, sync_path
from dora_rl.store.errors import Contradiction, JournalDamaged, JournalError

SCHEMA = 3
"""Number of the format that journals are written in."""
EPISODIC = 4
"""Number of the format of journals of episodes: the same with tables of its own."""
READABLE = (2, SCHEMA, EPISODIC)
"""Formats that can be gone on with; 2 has no sums of its rows."""
APPLICATION = 0x444F5241
"""SQLite's application id of a journal: "DORA" in ASCII."""

_MAX_WAL_BYTES = 64 * 2**20
_PATIENT_MS = 60_000
"""How long a writer waits for readers where they keep each other out, as they do with a rollback journal."""
_FAILING_DISK = "the disk may be over its quota, failing, or gone; nothing that was recorded is lost"

# Blobs that are dropped early are kept apart from what stays: changing a row of SQLite rewrites all of it.
_TABLES = {
    "settings": ("name, value", "name TEXT PRIMARY KEY, value BLOB NOT NULL"),
    "events": (
        "seq, input, decisions",
        "seq INTEGER PRIMARY KEY, input BLOB NOT NULL, decisions BLOB NOT NULL",
    ),
    "groups": (
        "id, version, epoch, row, is_evaluation, batch",
        "id INTEGER PRIMARY KEY, version INTEGER NOT NULL, epoch INTEGER NOT NULL, row INTEGER NOT NULL,"
        " is_evaluation INTEGER NOT NULL, batch INTEGER",
    ),
    "prompts": ("group_id, tokens", "group_id INTEGER PRIMARY KEY, tokens BLOB NOT NULL"),
    "streamed_rows": ("row, content", "row INTEGER PRIMARY KEY, content BLOB NOT NULL"),
    "trajectories": (
        "id, group_id, member, version, attempt, state, num_tokens, is_truncated, score, outcome",
        "id INTEGER PRIMARY KEY, group_id INTEGER NOT NULL, member INTEGER NOT NULL,"
        " version INTEGER NOT NULL, attempt INTEGER NOT NULL, state TEXT NOT NULL,"
        " num_tokens INTEGER NOT NULL DEFAULT 0, is_truncated INTEGER NOT NULL DEFAULT 0,"
        " score BLOB, outcome TEXT",
    ),
    "chunks": (
        "trajectory, start, version, tokens, logprobs, cut_logprobs",
        "trajectory INTEGER NOT NULL, start INTEGER NOT NULL, version INTEGER, tokens BLOB NOT NULL,"
        " logprobs BLOB NOT NULL, cut_logprobs BLOB NOT NULL",
    ),
    "responses": (
        "trajectory, stretches, tokens, logprobs, cut_logprobs",
        "trajectory INTEGER PRIMARY KEY, stretches BLOB NOT NULL, tokens BLOB NOT NULL,"
        " logprobs BLOB NOT NULL, cut_logprobs BLOB NOT NULL",
    ),
    "batches": (
        "number, groups, is_published, is_pruned",
        "number INTEGER PRIMARY KEY, groups BLOB NOT NULL, is_published INTEGER NOT NULL DEFAULT 0,"
        " is_pruned INTEGER NOT NULL DEFAULT 0",
    ),
    "metrics": ("version, line", "version INTEGER PRIMARY KEY, line BLOB NOT NULL"),
    "experts": (
        "trajectory, branch, start, experts",
        "trajectory INTEGER NOT NULL, branch INTEGER NOT NULL, start INTEGER NOT NULL, experts BLOB NOT NULL",
    ),
}
"""Columns of each table, by name and as SQL declares them."""
_EPISODE_TABLES = {
    "branch_chunks": (
        "trajectory, branch, start, version, tokens, logprobs, cut_logprobs, is_trained",
        "trajectory INTEGER NOT NULL, branch INTEGER NOT NULL, start INTEGER NOT NULL, version INTEGER,"
        " tokens BLOB NOT NULL, logprobs BLOB NOT NULL, cut_logprobs BLOB NOT NULL,"
        " is_trained INTEGER NOT NULL",
    ),
    "turns": (
        "trajectory, number, branch, finish",
        "trajectory INTEGER NOT NULL, number INTEGER NOT NULL, branch INTEGER NOT NULL, finish TEXT NOT NULL",
    ),
    "onces": (
        "trajectory, branch, number, key, value",
        "trajectory INTEGER NOT NULL, branch INTEGER NOT NULL, number INTEGER NOT NULL, key TEXT NOT NULL,"
        " value BLOB NOT NULL",
    ),
    "contexts": (
        "id, epoch, row, is_evaluation, tokens",
        "id INTEGER PRIMARY KEY, epoch INTEGER NOT NULL, row INTEGER NOT NULL,"
        " is_evaluation INTEGER NOT NULL, tokens BLOB NOT NULL",
    ),
}
"""Tables that only the journals of episodes have."""
_ENDINGS = {
    "settings": ") WITHOUT ROWID",
    "chunks": ", PRIMARY KEY (trajectory, start)) WITHOUT ROWID",
    "experts": ", PRIMARY KEY (trajectory, branch, start)) WITHOUT ROWID",
    "branch_chunks": ", PRIMARY KEY (trajectory, branch, start)) WITHOUT ROWID",
    "turns": ", PRIMARY KEY (trajectory, number)) WITHOUT ROWID",
    "onces": ", PRIMARY KEY (trajectory, branch, number)) WITHOUT ROWID",
}
_INDICES = (
    "CREATE INDEX trajectories_of_group ON trajectories (group_id)",
    "CREATE INDEX open_trajectories ON trajectories (id) WHERE state IN ('running', 'ended')",
)
_LATER_TABLES = "CREATE TABLE IF NOT EXISTS metrics (version INTEGER PRIMARY KEY, line BLOB NOT NULL)"
"""A table that journals of schema 2 were also written without."""


def create_database(
    path: Path, settings: dict[str, bytes], *, is_episodic: bool, is_shared: bool = False
) -> None:
    """Make an empty journal at `path`, of episodes or not; an error if something is there already."""
    if path.exists():
        raise JournalError(f"{path} exists already", hint="open it, or choose another place")
    _remove(path)
    try:
        with named_errors(path), closing(_connect(path, mode="rwc")) as db:
            set_storage(db, path, is_shared=is_shared)
            with transaction(db, path):
                _lay_out(db, settings, EPISODIC if is_episodic else SCHEMA)
    except BaseException:
        _remove(path)
        raise
    sync_path(path.parent)


def _remove(path: Path) -> None:
    """Remove the database file and its write-ahead log, which another file would be read with."""
    for suffix in ("", "-wal", "-shm"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)


def _tables(schema: int) -> dict[str, tuple[str, str]]:
    return _TABLES | _EPISODE_TABLES if schema == EPISODIC else _TABLES


def _lay_out(db: sqlite3.Connection, settings: dict[str, bytes], schema: int) -> None:
    for table, (names, declared) in _tables(schema).items():
        db.execute(_created(table, names, declared))
    for statement in _INDICES:
        db.execute(statement)
    db.executemany("INSERT INTO settings (name, value) VALUES (?, ?)", settings.items())
    db.execute(f"PRAGMA application_id={APPLICATION}")
    db.execute(f"PRAGMA user_version={schema}")


def _created(table: str, names: str, declared: str) -> str:
    """The statement that creates a table, with a sum over each row."""
    summed = f"row_sum INTEGER GENERATED ALWAYS AS (row_sum({names})) STORED"
    return f"CREATE TABLE {table} ({declared}, {summed}{_ENDINGS.get(table, ')')}"


def open_database(path: Path) -> sqlite3.Connection:
    """Open an existing journal whose schema can be read."""
    if not path.is_file():
        raise _lost(path, f"there is no journal {path}")
    db = _connect(path, mode="rw")
    try:
        _check_schema(db, path)
        with named_errors(path):
            db.execute(_LATER_TABLES)
            # Journals were also written without.
            if not db.execute("SELECT 1 FROM sqlite_master WHERE name = 'experts'").fetchone():
                db.execute(_created("experts", *_TABLES["experts"]))
    except BaseException:
        db.close()
        raise
    return db


def check_database(db: sqlite3.Connection, path: Path) -> None:
    """Read all of a journal; JournalDamaged where a page, an index or a row is not as it was written."""
    with named_errors(path):
        (found,) = db.execute("PRAGMA integrity_check(1)").fetchone()
        if found != "ok":
            raise damaged(path, found.replace("\n", " "))
        (schema,) = db.execute("PRAGMA user_version").fetchone()
        for table, (names, _) in _tables(schema).items() if schema >= SCHEMA else ():
            query = f"SELECT count(*) FROM {table} WHERE row_sum IS NOT row_sum({names})"
            if (wrong := db.execute(query).fetchone()[0]) > 0:
                raise damaged(path, f"{wrong:,} rows of {table} were changed after they were written")
        first, last, number = db.execute("SELECT min(seq), max(seq), count(*) FROM events").fetchone()
        if number and (first, last) != (0, number - 1):
            raise damaged(path, f"of its {last + 1:,} events {last + 1 - number:,} are missing")


def row_sum(*values: Any) -> int:
    """CRC-32 of a row's values and of where each ends; SQLite calls it for every row that is written."""
    found = 0
    for value in values:
        content = value if isinstance(value, bytes) else repr(value).encode()
        found = zlib.crc32(content, zlib.crc32(b"%d" % len(content), found))
    return found


def damaged(path: Path, problem: str) -> JournalDamaged:
    """The error for a journal that is not as it was written."""
    return _lost(path, f"{path} is damaged: {problem}")


def _lost(path: Path, message: str) -> JournalDamaged:
    """The error for a run that cannot go on with the journal it has."""
    return JournalDamaged(
        message,
        hint=f"put it back from a copy, with {path.name}-wal where there was one, or start another run from "
        "the last checkpoint of this one: --set model=CHECKPOINT",
    )


def set_storage(db: sqlite3.Connection, path: Path, *, is_shared: bool) -> None:
    """Have what is written survive on the storage there is; the file must be used by nobody else."""
    mode, synchronous = ("DELETE", "EXTRA") if is_shared else ("WAL", "FULL")
    with named_errors(path):
        (found,) = db.execute(f"PRAGMA journal_mode={mode}").fetchone()
        if found.upper() != mode:
            raise JournalError(f"{path} stays in mode {found}, and its storage needs {mode}")
        db.execute(f"PRAGMA synchronous={synchronous}")
        if is_shared:
            db.execute(f"PRAGMA busy_timeout={_PATIENT_MS}")


@contextmanager
def transaction(db: sqlite3.Connection, path: Path) -> Iterator[None]:
    """Make all of the block durable when it ends, or, if it raises, nothing of it."""
    with named_errors(path):
        try:
            db.execute("BEGIN IMMEDIATE")
            yield
            db.execute("COMMIT")
        except BaseException:
            if db.in_transaction:
                db.execute("ROLLBACK")
            raise


@contextmanager
def named_errors(path: Path) -> Iterator[None]:
    """Turn SQLite's errors within the block into DiskFull, Contradiction or JournalError.

    What cannot be decoded is damaged, as is what SQLite cannot make sense of.
    """
    try:
        yield
    except sqlite3.Error as error:
        raise _named(error, path) from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise damaged(path, str(error)) from error


def _connect(path: Path, *, mode: str) -> sqlite3.Connection:
    with named_errors(path):
        # A caller may hand the blocking call to a thread; there is never more than one at a time.
        db = sqlite3.connect(
            f"{path.absolute().as_uri()}?mode={mode}", uri=True, isolation_level=None, check_same_thread=False
        )
        db.create_function("row_sum", -1, row_sum, deterministic=True)
        db.execute("PRAGMA synchronous=FULL")
        db.execute(f"PRAGMA journal_size_limit={_MAX_WAL_BYTES}")
    return db


def _check_schema(db: sqlite3.Connection, path: Path) -> None:
    with named_errors(path):
        (application,) = db.execute("PRAGMA application_id").fetchone()
        (schema,) = db.execute("PRAGMA user_version").fetchone()
    if application != APPLICATION:
        raise _lost(path, f"{path} is no journal of dora-rl")
    if schema not in READABLE:
        raise JournalError(
            f"{path} is a journal of schema {schema}; this version reads {', '.join(map(str, READABLE))}",
            hint="use the version of dora-rl that wrote it",
        )


def _named(error: sqlite3.Error, path: Path) -> Exception:
    match getattr(error, "sqlite_errorcode", 0) & 0xFF:  # The low byte is the kind, the rest its details.
        case sqlite3.SQLITE_FULL:
            return disk_full(path)
        case sqlite3.SQLITE_CONSTRAINT:
            return Contradiction(f"{path} holds other records than its writer believes: {error}")
        case sqlite3.SQLITE_BUSY:
            return JournalError(f"{path} is being written by another process", hint="only one may")
        case sqlite3.SQLITE_NOTADB:
            return _lost(path, f"{path} is no journal of dora-rl")
        # Statements are always the same: one that is wrong was written for other tables than are there.
        case sqlite3.SQLITE_CORRUPT | sqlite3.SQLITE_ERROR:
            return damaged(path, str(error))
        case sqlite3.SQLITE_IOERR:
            return JournalError(f"{path} cannot be used: {error} ({_detail(error)})", hint=_FAILING_DISK)
    return JournalError(f"{path} cannot be used: {error} ({_detail(error)})", hint=_FAILING_DISK)


def _detail(error: sqlite3.Error) -> str:
    return getattr(error, "sqlite_errorname", None) or "SQLite"
