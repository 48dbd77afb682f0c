"""The process that plans a run: what the user's code does there is named, and does no harm."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Dora = Callable[..., Any]
DORA = (sys.executable, "-c", "from dora_rl.cli.entry import main; main()", "train", "recipe.yaml")


def spoil(project: Path, first_lines: str) -> None:
    judge = project / "judge.py"
    judge.write_text(f"{first_lines}\n{judge.read_text()}")


@pytest.mark.parametrize(
    ("first_lines", "message", "hint"),
    [
        ("import sys; sys.exit(0)", "judge.py, line 1: SystemExit: 0", "__main__"),
        ("import os; os._exit(3)", "ended with exit code 3 while importing", "judge.py` shows"),
        pytest.param(
            "import os; os._exit(0)",
            "ended with exit code 0 while importing",
            "judge.py` shows",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "import time; time.sleep(1e6)",
            "judge.py took longer than scoring.start_limit_s = 2 s",
            "raise",
            marks=pytest.mark.slow,
        ),
    ],
)
@pytest.mark.timeout(90)
def test_a_reward_that_ends_or_holds_up_the_planning_is_named(
    dora: Dora, project: Path, first_lines: str, message: str, hint: str
) -> None:
    spoil(project, first_lines)
    called = dora("train", "recipe.yaml", "--set", "scoring.start_limit_s=2")
    assert called.exit_code == 2, called.err
    assert called.out == ""
    # Where the machine is busy, what takes long is told.
    error, rest = (line for line in called.err.splitlines() if not line.endswith(" ..."))
    assert error.startswith("error: ")
    assert message in error
    assert "judge.py" in error
    assert rest.startswith("hint: ")
    assert hint in rest
    assert not (project / "runs").exists()


@pytest.mark.timeout(90)
def test_what_a_reward_prints_is_no_output_of_the_command(project: Path) -> None:
    loud = "import os; print('hello'); os.write(1, b'you\\n')"
    spoil(project, loud)
    command = [*DORA, "--dry-run", "--json"]
    called = subprocess.run(command, capture_output=True, text=True, check=False, timeout=55)
    assert called.returncode == 0, called.stderr
    assert json.loads(called.stdout)["rows"] == 4
    assert sorted(called.stderr.split()) == ["hello", "you"]


@pytest.mark.timeout(90)
def test_the_planning_ends_when_its_owner_is_killed(project: Path) -> None:
    (project / "judge.py").write_text(
        "import os, pathlib, time\n"
        "pathlib.Path('planner.tmp').write_text(str(os.getpid()))\n"
        "os.rename('planner.tmp', 'planner')\n"
        "time.sleep(1e6)\n"
    )
    with subprocess.Popen(DORA, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as owner:
        try:
            wait_until((project / "planner").exists)
        finally:
            owner.send_signal(signal.SIGKILL)
    planner = int((project / "planner").read_text())
    wait_until(lambda: not is_running(planner), limit_s=10.0)


def wait_until(is_so: Callable[[], bool], limit_s: float = 60.0) -> None:
    until = time.monotonic() + limit_s
    while not is_so():
        assert time.monotonic() < until, f"waited for {limit_s} s"
        time.sleep(0.05)


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
        # One whose new parent does not wait for it stays in the table.
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (ProcessLookupError, FileNotFoundError):
        return False
