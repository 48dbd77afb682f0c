"""Storage that machines share: it is known, its locks are tried, and a journal on it has no log beside it."""

import fcntl
import random
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from dora_rl.core.fence import StaleLeader, take_epoch
from dora_rl.store.errors import JournalError
from dora_rl.store.journal import Journal
from dora_rl.store.storage import check_locks, file_system, is_shared

from .appends import RECIPE, check, write
from .test_crashes import write_until_killed

MOUNTS = """\
/dev/vda / ext4 rw 0 0
tmpfs /tmp tmpfs rw 0 0
server:/home /home nfs4 rw,vers=4.2 0 0
/dev/vdb /home/local xfs rw 0 0
fs@tcp:/work /mnt/big\\040disk lustre rw 0 0
"""


@pytest.fixture
def mounts(tmp_path: Path) -> Path:
    (tmp_path / "mounts").write_text(MOUNTS)
    return tmp_path / "mounts"


@pytest.mark.parametrize(
    ("place", "kind", "shared"),
    [
        ("/srv/runs", "ext4", False),
        ("/tmp/runs/1", "tmpfs", False),
        ("/home/me/runs", "nfs4", True),
        ("/home/local/runs", "xfs", False),
        ("/mnt/big disk/runs", "lustre", True),
    ],
)
def test_storage_is_known_by_the_file_system_that_is_mounted_nearest(
    mounts: Path, place: str, kind: str, shared: bool
) -> None:
    assert file_system(Path(place), mounts) == kind
    assert is_shared(Path(place), "auto", mounts) == shared
    assert is_shared(Path(place), "shared", mounts)
    assert not is_shared(Path(place), "local", mounts)


def test_locks_are_tried_by_two_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check_locks(tmp_path)
    assert not list(tmp_path.iterdir())
    monkeypatch.setattr(fcntl, "lockf", lambda *asked: None)
    with pytest.raises(JournalError, match="keeps no locks"):
        check_locks(tmp_path)


def mode_of(journal: Journal) -> tuple[str, int]:
    (mode,) = journal._db.execute("PRAGMA journal_mode").fetchone()
    (synchronous,) = journal._db.execute("PRAGMA synchronous").fetchone()
    return mode, synchronous


def test_a_journal_changes_its_mode_with_the_storage_it_is_found_on(tmp_path: Path) -> None:
    path, epochs = tmp_path / "journal.sqlite", tmp_path / "epochs"
    Journal.create(path, RECIPE, is_shared=True).close()
    for turn, shared in enumerate((True, False, True)):
        with Journal.open(path) as journal:
            journal.lead(take_epoch(epochs, above=journal.epoch), is_shared=shared)
            assert mode_of(journal) == (("delete", 3) if shared else ("wal", 2))
            write(journal, 2)
            assert path.with_name(f"{path.name}-wal").exists() != shared
            check(journal, 2 * turn + 2)


def test_what_a_killed_process_acknowledged_is_there_on_shared_storage_too(tmp_path: Path) -> None:
    path, chance, acknowledged = tmp_path / "journal.sqlite", random.Random(3), 0
    Journal.create(path, RECIPE, is_shared=True).close()
    with closing(sqlite3.connect(path)) as db:
        assert db.execute("PRAGMA journal_mode").fetchone() == ("delete",)
    for _ in range(4):
        told = write_until_killed(path, chance.random() * 0.05, has_begun=True)
        acknowledged = max(acknowledged, told)
        with Journal.open(path) as journal:
            assert journal.num_inputs - acknowledged in (0, 1)
            check(journal, journal.num_inputs)
            acknowledged = journal.num_inputs


@pytest.mark.parametrize("shared", [False, True])
def test_a_stale_leader_is_refused_by_the_journal_itself(tmp_path: Path, shared: bool) -> None:
    """Also where it does not see the other's epoch: the file of it is gone."""
    path, epochs = tmp_path / "journal.sqlite", tmp_path / "epochs"
    Journal.create(path, RECIPE).close()
    with Journal.open(path) as stale:
        stale.lead(take_epoch(epochs), is_shared=shared)
        write(stale, 1)
        with Journal.open(path) as newer:
            newer.lead(take_epoch(epochs, above=newer.epoch), is_shared=shared)
            for each in epochs.iterdir():
                each.unlink()
            for attempt in (lambda: write(stale, 1), lambda: stale.covered(0)):
                with pytest.raises(StaleLeader, match="refused"):
                    attempt()
            write(newer, 1)
        assert stale.num_inputs == 1
    with Journal.open(path) as journal:
        check(journal, 2)
        assert take_epoch(epochs, above=journal.epoch).epoch == 3
