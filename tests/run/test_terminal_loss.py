"""A run outlives its terminal."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from dora_rl.run.run_layout import LiveLayout

from .learning import begin, finished, num_published, resume

SMALL = ("steps=12", "batch.groups=4", "batch.group_size=4", "checkpoints.every=50")


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_run_outlives_its_terminal_and_a_hangup_ends_it_in_order(tmp_path: Path) -> None:
    """First the terminal is gone, which says so twice; resumed, all output goes to a full disk."""
    root = tmp_path / "run"
    layout = LiveLayout(root=root)
    command = begin(root, *SMALL)
    assert command._process.stdout is not None
    command._process.stdout.close()
    command.wait_for_step(2, limit_s=150)
    for _ in range(2):
        os.kill(command._process.pid, signal.SIGHUP)
        time.sleep(0.02)
    assert command._process.wait(timeout=120) == 130
    command._stderr.close()
    steps = num_published(root)
    assert 2 <= steps < 12
    assert (layout.checkpoints / f"step_{steps:05}/trainer/checkpoint.json").exists()
    assert "<stdout> cannot be written (Broken pipe)" in layout.orchestrator_log.read_text()

    program = "from dora_rl.cli.entry import main; main()"
    with Path("/dev/full").open("wb") as full:
        ended = subprocess.run(
            [sys.executable, "-c", program, "train", "--resume", str(root)],
            stdout=full,
            stderr=full,
            check=False,
            timeout=200,
        )
    assert ended.returncode == 0
    assert json.loads(layout.finished.read_text())["is_complete"]
    assert (root / "report.html").exists()
    assert layout.orchestrator_log.read_text().count("<stderr> cannot be written (No space left") == 1
    assert finished(resume(root), within_s=120)["steps"] == 12
