"""The journal's SQLite file: its tables, how it is opened, and what its errors mean.

Knows SQL and files, not what the records say. WAL mode with `synchronous=FULL`: a transaction is on the
disk when it returns, or is not there at all.
"""

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from dora_rl.store.durable import disk_full, sync_path
from dora_rl.store.errors import Contradiction, JournalError

SCHEMA = 2
"""Number of the journal's format, raised when journals written before can no longer be read."""
APPLICATION = 0x444F5241
"""SQLite's application id of a journal: "DORA" in ASCII."""

_MAX_WAL_BYTES = 64 * 2**20
_FAILING_DISK = "the disk may be over its quota, failing, or gone; nothing that was recorded is lost"

# Blobs that are dropped early are kept apart from what stays: changing a row of SQLite rewrites all of it.
_TABLES = """
CREATE TABLE settings (name TEXT PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE events (seq INTEGER PRIMARY KEY, input BLOB NOT NULL, decisions BLOB NOT NULL);
CREATE TABLE groups (
    id INTEGER PRIMARY KEY, version INTEGER NOT NULL, epoch INTEGER NOT NULL, row INTEGER NOT NULL,
    is_evaluation INTEGER NOT NULL, batch INTEGER);
CREATE TABLE prompts (group_id INTEGER PRIMARY KEY, tokens BLOB NOT NULL);
CREATE TABLE streamed_rows (row INTEGER PRIMARY KEY, content BLOB NOT NULL);
CREATE TABLE trajectories (
    id INTEGER PRIMARY KEY, group_id INTEGER NOT NULL, member INTEGER NOT NULL, version INTEGER NOT NULL,
    attempt INTEGER NOT NULL, state TEXT NOT NULL, num_tokens INTEGER NOT NULL DEFAULT 0,
    is_truncated INTEGER NOT NULL DEFAULT 0, score BLOB, outcome TEXT);
CREATE INDEX trajectories_of_group ON trajectories (group_id);
CREATE INDEX open_trajectories ON trajectories (id) WHERE state IN ('running', 'ended');
CREATE TABLE chunks (
    trajectory INTEGER NOT NULL, start INTEGER NOT NULL, version INTEGER, tokens BLOB NOT NULL,
    logprobs BLOB NOT NULL, cut_logprobs BLOB NOT NULL, PRIMARY KEY (trajectory, start)) WITHOUT ROWID;
CREATE TABLE responses (
    trajectory INTEGER PRIMARY KEY, stretches BLOB NOT NULL, tokens BLOB NOT NULL, logprobs BLOB NOT NULL,
    cut_logprobs BLOB NOT NULL);
CREATE TABLE batches (
    number INTEGER PRIMARY KEY, groups BLOB NOT NULL, is_published INTEGER NOT NULL DEFAULT 0,
    is_pruned INTEGER NOT NULL DEFAULT 0);
"""
_LATER_TABLES = "CREATE TABLE IF NOT EXISTS metrics (version INTEGER PRIMARY KEY, line BLOB NOT NULL)"
"""A table that journals of this schema were also written without."""


def create_database(path: Path, settings: dict[str, bytes]) -> None:
    """Make an empty journal at `path`; an error if something is there already."""
    if path.exists():
        raise JournalError(f"{path} exists already", hint="open it, or choose another place")
    _remove(path)
    try:
        with named_errors(path), closing(_connect(path, mode="rwc")) as db:
            db.execute("PRAGMA journal_mode=WAL")
            with transaction(db, path):
                _lay_out(db, settings)
    except BaseException:
        _remove(path)
        raise
    sync_path(path.parent)


def _remove(path: Path) -> None:
    """Remove the database file and its write-ahead log, which another file would be read with."""
    for suffix in ("", "-wal", "-shm"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)


def _lay_out(db: sqlite3.Connection, settings: dict[str, bytes]) -> None:
    for statement in _TABLES.strip().split(";\n"):
        db.execute(statement)
    db.execute(_LATER_TABLES)
    db.executemany("INSERT INTO settings VALUES (?, ?)", settings.items())
    db.execute(f"PRAGMA application_id={APPLICATION}")
    db.execute(f"PRAGMA user_version={SCHEMA}")


def open_database(path: Path) -> sqlite3.Connection:
    """Open an existing journal whose schema can be read."""
    if not path.is_file():
        raise JournalError(f"there is no journal {path}", hint="check the path of the run")
    db = _connect(path, mode="rw")
    try:
        _check_schema(db, path)
        with named_errors(path):
            db.execute(_LATER_TABLES)
    except BaseException:
        db.close()
        raise
    return db


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
    """Turn SQLite's errors within the block into DiskFull, Contradiction or JournalError."""
    try:
        yield
    except sqlite3.Error as error:
        raise _named(error, path) from error


def _connect(path: Path, *, mode: str) -> sqlite3.Connection:
    with named_errors(path):
        # A caller may hand the blocking call to a thread; there is never more than one at a time.
        db = sqlite3.connect(
            f"{path.absolute().as_uri()}?mode={mode}", uri=True, isolation_level=None, check_same_thread=False
        )
        db.execute("PRAGMA synchronous=FULL")
        db.execute(f"PRAGMA journal_size_limit={_MAX_WAL_BYTES}")
    return db


def _check_schema(db: sqlite3.Connection, path: Path) -> None:
    with named_errors(path):
        (application,) = db.execute("PRAGMA application_id").fetchone()
        (schema,) = db.execute("PRAGMA user_version").fetchone()
    if application != APPLICATION:
        raise JournalError(f"{path} is no journal of dora-rl", hint="check the path of the run")
    if schema != SCHEMA:
        raise JournalError(
            f"{path} is a journal of schema {schema}; this version reads {SCHEMA}",
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
            return JournalError(f"{path} is no journal of dora-rl", hint="check the path of the run")
        case sqlite3.SQLITE_IOERR:
            return JournalError(f"{path} cannot be used: {error} ({_detail(error)})", hint=_FAILING_DISK)
    return JournalError(f"{path} cannot be used: {error} ({_detail(error)})")


def _detail(error: sqlite3.Error) -> str:
    return getattr(error, "sqlite_errorname", None) or "SQLite"
