"""A journal whose file is changed by a disk or a hand is found out, or says what it always said."""

import random
import sqlite3
from pathlib import Path

import pytest

from dora_rl.core.recipe import Recipe
from dora_rl.store.errors import JournalDamaged, JournalError, RunError
from dora_rl.store.journal import Journal
from dora_rl.store.sealed_files import NAME, check_sealed, seal_files

from .appends import RECIPE, check, write

APPENDS = 12


@pytest.fixture(scope="module")
def content(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("whole") / "journal.sqlite"
    with Journal.create(path, RECIPE) as journal:
        write(journal, APPENDS)
    return path.read_bytes()


def verdict(path: Path) -> str:
    """Whether a journal is refused by name, with a way out, or holds what was written."""
    refused = refusal(path)
    if refused is None:
        return "whole"
    assert str(path) in refused.message
    assert refused.hint
    return "refused"


def refusal(path: Path) -> JournalError | None:
    try:
        with Journal.open(path) as journal:
            journal.check()
            check(journal, APPENDS)
            assert journal.recipe == RECIPE
    except JournalError as error:
        return error
    return None


def test_whatever_bytes_are_changed_it_is_noticed_or_changes_nothing(tmp_path: Path, content: bytes) -> None:
    draw, path, found = random.Random(3), tmp_path / "journal.sqlite", set[str]()
    for _ in range(150):
        changed = bytearray(content)
        changed[draw.randrange(len(changed))] ^= draw.randint(1, 255)
        path.write_bytes(changed)
        found.add(verdict(path))
    assert found == {"refused", "whole"}, "some of the file is free"


def test_wherever_it_is_cut_it_is_noticed(tmp_path: Path, content: bytes) -> None:
    draw, path = random.Random(4), tmp_path / "journal.sqlite"
    for size in (0, 100, 4096, *(draw.randrange(len(content)) for _ in range(40))):
        path.write_bytes(content[:size])
        assert verdict(path) == "refused", size


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE trajectories SET state = 'closed' WHERE id = 1",
        "UPDATE responses SET tokens = logprobs WHERE trajectory = 2",
        "UPDATE groups SET version = 1 WHERE id = 1",
        "DELETE FROM events WHERE seq = 3",
    ],
)
def test_a_row_that_another_program_changed_is_noticed(
    tmp_path: Path, content: bytes, statement: str
) -> None:
    path = tmp_path / "journal.sqlite"
    path.write_bytes(content)
    with sqlite3.connect(path) as db:
        # Not of the row as it is changed, as a flipped bit would have it.
        db.create_function("row_sum", -1, lambda *values: 0, deterministic=True)
        db.execute(statement)
    db.close()
    with Journal.open(path) as journal, pytest.raises(JournalDamaged, match=r"changed after|are missing"):
        journal.check()


def test_a_journal_without_sums_is_gone_on_with(tmp_path: Path) -> None:
    """One of schema 2, as earlier versions wrote it."""
    path = tmp_path / "journal.sqlite"
    with Journal.create(path, Recipe()):
        pass
    with sqlite3.connect(path) as db:
        db.create_function("row_sum", -1, lambda *values: 0, deterministic=True)
        for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
            rows = db.execute(f"PRAGMA table_xinfo({name})").fetchall()
            columns = ", ".join(row[1] for row in rows if row[1] != "row_sum")
            db.execute(f"CREATE TABLE plain_{name} AS SELECT {columns} FROM {name}")
            db.execute(f"DROP TABLE {name}")
            db.execute(f"ALTER TABLE plain_{name} RENAME TO {name}")
        db.execute("PRAGMA user_version=2")
    db.close()
    with Journal.open(path) as journal:
        journal.check()
        assert journal.recipe == Recipe()


def sealed(root: Path) -> Path:
    (root / "model").mkdir()
    (root / "model/weights").write_bytes(b"weights")
    (root / "prompts").write_bytes(b"prompts")
    seal_files(root, (root / "prompts", root / "model", root / "adapter"))
    return root


def test_sealed_files_that_are_whole_pass_and_unsealed_ones_are_not_looked_at(tmp_path: Path) -> None:
    check_sealed(tmp_path)
    check_sealed(sealed(tmp_path))
    (tmp_path / "other").write_bytes(b"anything")
    check_sealed(tmp_path)


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("prompts", b"prompt!", "prompts was changed after the run had begun"),
        ("model/weights", None, "weights is missing"),
        (NAME, b"{}", "sealed.json is damaged"),
        (NAME, b"\xff", "sealed.json is damaged"),
        (NAME, b'{"files": {"prompts": "0"}, "sealed_by": "1"}', "sealed.json is damaged"),
    ],
)
def test_a_sealed_file_that_changed_is_named_with_a_way_out(
    tmp_path: Path, name: str, content: bytes | None, said: str
) -> None:
    path = sealed(tmp_path) / name
    path.unlink() if content is None else path.write_bytes(content)
    with pytest.raises(RunError, match=said) as refused:
        check_sealed(tmp_path)
    assert "put it back from a copy" in (refused.value.hint or "")
