"""Two orchestrators on one run directory, whose lock does not keep them apart: the older one is refused."""

import json
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from dora_rl.core.recipe import RunSettings
from dora_rl.run.open_run import replay_live
from dora_rl.run.run_layout import LiveLayout
from dora_rl.run.run_setup import write_setup

from .conftest import MakeSetup, staged
from .verdict import check_journal

VICTIM = str(Path(__file__).with_name("victim.py"))


def begin(where: Path) -> subprocess.Popen[str]:
    command = [sys.executable, VICTIM, str(where), "[]"]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def published(root: Path) -> int:
    events = LiveLayout(root=root).events
    return events.read_text().count('"Published"') if events.exists() else 0


@pytest.mark.slow
@pytest.mark.timeout(180)
@pytest.mark.parametrize("storage", ["local", "shared"])
def test_a_stale_orchestrator_is_refused_and_its_successor_ends_the_run(
    make_setup: MakeSetup, storage: Any
) -> None:
    setup = make_setup(steps=60, run=RunSettings(trackers=(), storage=storage))
    root = Path(setup.run_directory)
    write_setup(setup, root.with_suffix(".json"))
    staged(setup)
    older = begin(root.with_suffix(".json"))
    while published(root) < 3:
        assert older.poll() is None
        time.sleep(0.05)
    assert (root / "journal.sqlite-wal").exists() == (storage == "local")
    # As storage does whose locks reach no further than one machine, or that gave the lock of one it lost.
    for lock in (LiveLayout(root=root).lock, LiveLayout(root=root).versions / "lock"):
        lock.unlink()
    newer = begin(root)
    _, said = older.communicate(timeout=60)
    assert older.returncode == 1
    assert re.search(r"process \d+ on .* leads the run in .* now \(epoch \d+\)", said)
    told, said = newer.communicate(timeout=120)
    assert newer.returncode == 0, said
    assert json.loads(told.splitlines()[-1])["is_complete"]
    check_journal(root)
    assert replay_live(root).difference is None
    # The newer one's trainer may have had to wait for the store's lock, each time under another epoch.
    assert {"00000001", "00000002"} <= {path.name for path in LiveLayout(root=root).epochs.iterdir()}
