"""A full disk is an error with a name; nothing acknowledged is lost and nothing half-written shows."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from dora_rl.core.errors import DoraError
from dora_rl.store.durable import new_directory, write_atomically
from dora_rl.store.errors import DiskFull
from dora_rl.store.journal import Journal
from dora_rl.store.reconcile import reconcile

from .appends import RECIPE, check, nth, write


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of one megabyte."""
    place = tmp_path / "disk"
    place.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", place], capture_output=True)
    if mounted.returncode:
        pytest.skip("mounting a file system is not allowed here")
    yield place
    subprocess.run(["umount", "--lazy", place], check=True)


def fill(place: Path, *, leave_bytes: int) -> Path:
    """A file that takes all the room but so much."""
    ballast = place / "ballast"
    free_bytes = os.statvfs(place).f_bavail * os.statvfs(place).f_frsize
    ballast.write_bytes(bytes(max(0, free_bytes - leave_bytes)))
    return ballast


def append_until_full(journal: Journal) -> int:
    """Append until there is no room, twice; return how many were acknowledged."""
    with pytest.raises(DiskFull, match="no space is left to write"):
        write(journal, 1000)
    count = journal.num_inputs
    with pytest.raises(DiskFull):
        journal.append(*nth(count))
    check(journal, count)
    return count


@pytest.mark.parametrize("leave_bytes", [8192, 40_000, 300_000])
def test_a_full_disk_loses_nothing_and_the_run_goes_on_when_there_is_room(
    small_disk: Path, leave_bytes: int
) -> None:
    path = small_disk / "journal.sqlite"
    Journal.create(path, RECIPE).close()
    with Journal.open(path) as journal:
        write(journal, 3)
        ballast = fill(small_disk, leave_bytes=leave_bytes)
        count = append_until_full(journal)
        ballast.unlink()
        write(journal, 5)
        check(journal, count + 5)


@pytest.mark.parametrize("leave_bytes", [0, 40_000])
def test_a_journal_left_on_a_full_disk_opens_again(small_disk: Path, leave_bytes: int) -> None:
    path = small_disk / "journal.sqlite"
    Journal.create(path, RECIPE).close()
    with Journal.open(path) as journal:
        write(journal, 10)
        ballast = fill(small_disk, leave_bytes=leave_bytes)
        count = append_until_full(journal)
    ballast.unlink()
    with Journal.open(path) as journal:
        check(journal, count)
        write(journal, 2)
        check(journal, count + 2)


def test_a_journal_cannot_begin_on_a_full_disk(small_disk: Path) -> None:
    ballast = fill(small_disk, leave_bytes=8192)
    with pytest.raises(DoraError):
        Journal.create(small_disk / "journal.sqlite", RECIPE)
    ballast.unlink()
    assert not list(small_disk.iterdir()), "what could not be made whole is gone"
    Journal.create(small_disk / "journal.sqlite", RECIPE).close()


def test_files_are_whole_or_absent_on_a_full_disk(small_disk: Path) -> None:
    write_atomically(small_disk / "marker", b"before")
    ballast = fill(small_disk, leave_bytes=8192)
    with pytest.raises(DiskFull, match="no space is left to write"):
        write_atomically(small_disk / "marker", bytes(50_000))
    with pytest.raises(DiskFull), new_directory(small_disk / "made") as directory:
        (directory / "large").write_bytes(bytes(50_000))
    assert (small_disk / "marker").read_bytes() == b"before"
    assert sorted(small_disk.iterdir()) == [ballast, small_disk / "marker"]


def test_an_event_log_that_found_no_room_is_reconciled_when_there_is(
    small_disk: Path, tmp_path: Path
) -> None:
    with Journal.create(tmp_path / "journal.sqlite", RECIPE) as journal:
        write(journal, 60)
        ballast = fill(small_disk, leave_bytes=20_000)
        with pytest.raises(DiskFull):
            reconcile(small_disk / "events.jsonl", journal)
        ballast.unlink()
        reconcile(small_disk / "events.jsonl", journal)
        assert reconcile(small_disk / "events.jsonl", journal).num_kept == 60


LIMITED = """
import resource, sys
from pathlib import Path
sys.path[:0] = sys.argv[2:]
from tests.store.appends import RECIPE, check, nth, write
from dora_rl.core.errors import DoraError
from dora_rl.store.journal import Journal
for limit in range(60_000, 400_000, 17_000):
    path = Path(sys.argv[1]) / f"{limit}.sqlite"
    journal = Journal.create(path, RECIPE)
    write(journal, 2)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, -1))
    try:
        write(journal, 1000)
    except DoraError as error:
        print(error.message)
    count = journal.num_inputs
    check(journal, count)
    journal.close()
    resource.setrlimit(resource.RLIMIT_FSIZE, (-1, -1))
    with Journal.open(path) as journal:
        check(journal, count)
        write(journal, 2)
        check(journal, count + 2)
"""


def test_a_write_may_fail_anywhere(tmp_path: Path) -> None:
    """Files may not grow beyond a limit, which is another one each time."""
    command = [sys.executable, "-c", LIMITED, str(tmp_path), str(Path(__file__).parents[2]), *sys.path]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 20
    assert all("cannot be used: disk I/O error" in line for line in done.stdout.splitlines())
