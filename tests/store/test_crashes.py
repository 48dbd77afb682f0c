"""Whenever a process is killed or a write is cut short: what was acknowledged is there, once, in order."""

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dora_rl.store.journal import Journal

from .appends import RECIPE, check, write

WRITER = """
import sys
from pathlib import Path
sys.path[:0] = sys.argv[2:]
from tests.store.appends import nth
from dora_rl.store.journal import Journal
journal = Journal.open(Path(sys.argv[1]))
for i in range(journal.num_inputs, 1_000_000):
    journal.append(*nth(i))
    sys.stdout.write(f"{i}\\n")
    sys.stdout.flush()
"""
ROOT = str(Path(__file__).parents[2])


def write_until_killed(path: Path, after_s: float, *, has_begun: bool) -> int:
    """Let another process append; kill it. Returns how many appends it told of, counted from the first."""
    command = [sys.executable, "-c", WRITER, str(path), ROOT, *sys.path]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as writer:
        assert writer.stdout is not None
        acknowledged = [writer.stdout.readline()] if has_begun else []
        time.sleep(after_s)
        os.kill(writer.pid, signal.SIGKILL)
        acknowledged += writer.stdout.readlines()
    assert writer.returncode == -signal.SIGKILL
    whole = [int(line) for line in acknowledged if line.endswith(b"\n")]
    return whole[-1] + 1 if whole else 0


def kill_again_and_again(path: Path, times: int) -> None:
    chance = random.Random(times)
    Journal.create(path, RECIPE).close()
    acknowledged = 0
    for i in range(times):
        has_begun = i % 3 > 0
        after_s = chance.random() * (0.05 if has_begun else 0.4)
        acknowledged = max(acknowledged, write_until_killed(path, after_s, has_begun=has_begun))
        with Journal.open(path) as journal:
            assert journal.num_inputs - acknowledged in (0, 1), "the last may have had no time to say so"
            check(journal, journal.num_inputs)
            acknowledged = journal.num_inputs


def test_what_a_killed_process_acknowledged_is_there_once_and_in_order(tmp_path: Path) -> None:
    kill_again_and_again(tmp_path / "journal.sqlite", 6)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_it_is_there_however_often_the_process_is_killed(tmp_path: Path) -> None:
    for block in range(10):
        kill_again_and_again(tmp_path / f"{block}.sqlite", 15)


class Torn:
    """A journal in the middle of a run, as its two files, and where in the log each append ended."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / "journal.sqlite"
        self.log = directory / "journal.sqlite-wal"
        Journal.create(self.path, RECIPE).close()
        self._journal = Journal.open(self.path)  # Kept open: closing it would empty the log.
        self.ends = []
        for _ in range(8):
            write(self._journal, 1)
            self.ends.append(self.log.stat().st_size)

    def crashed(self, directory: Path, log: bytes) -> Path:
        """A copy of the files as a power failure may leave them."""
        shutil.copy(self.path, directory / "journal.sqlite")
        (directory / "journal.sqlite-wal").write_bytes(log)
        return directory / "journal.sqlite"


@pytest.fixture(scope="module")
def torn(tmp_path_factory: pytest.TempPathFactory) -> Torn:
    return Torn(tmp_path_factory.mktemp("torn"))


@pytest.mark.parametrize("damage", ["cut", "overwritten"])
@given(share=st.floats(0, 1))
def test_a_torn_write_shows_whole_appends_only(
    torn: Torn, tmp_path_factory: pytest.TempPathFactory, damage: str, share: float
) -> None:
    whole = torn.log.read_bytes()
    at = min(len(whole) - 1, int(share * len(whole)))
    tail = b"" if damage == "cut" else bytes(0xFF ^ byte for byte in whole[at:])
    directory = tmp_path_factory.mktemp("crashed")
    with Journal.open(torn.crashed(directory, whole[:at] + tail)) as journal:
        survivors = journal.num_inputs
        assert survivors == sum(end <= at for end in torn.ends)
        check(journal, survivors)
        write(journal, 2)
    with Journal.open(directory / "journal.sqlite") as journal:
        check(journal, survivors + 2)
    shutil.rmtree(directory)
