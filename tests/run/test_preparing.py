"""Before a run: reading rows and the warm start may take long while they move; a death has its reason."""

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dora_rl.core.errors import DoraError
from dora_rl.core.recipe import Control, Patience
from dora_rl.core.recipe.live import WarmStart
from dora_rl.envs.config import DataConfig, SourceConfig
from dora_rl.launch.local import LOCAL, LocalHandle, LocalLaunch
from dora_rl.launch.protocol import Launch, WorkerSpec
from dora_rl.run import preparation
from dora_rl.run.layout import LiveLayout
from dora_rl.run.setup import RunSetup

from .conftest import MakeSetup

ROWS = "rows = [{'prompt': str(i), 'solution': str(i)} for i in range(8)]\n"


@pytest.fixture
def prepared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., LiveLayout]:
    """Prepare a run, telling often."""
    monkeypatch.setattr(preparation, "_TELL_EVERY_S", 0.2)
    monkeypatch.setattr(preparation.tempfile, "tempdir", str(tmp_path))

    def prepare(setup: RunSetup, tell: preparation.Tell = print, launch: Launch = LOCAL) -> LiveLayout:
        layout = LiveLayout(root=tmp_path / "made")
        layout.root.mkdir()
        preparation.make_prompts(setup, layout, tell, launch)
        return layout

    return prepare


def rows_of(tmp_path: Path, code: str) -> DataConfig:
    (tmp_path / "rows.py").write_text(code)
    return DataConfig(train=SourceConfig(name=f"{tmp_path / 'rows.py'}:rows"))


def kept_log(error: DoraError) -> str:
    return Path(str(error.hint).rpartition(" ")[2]).read_text()


def test_a_long_warm_start_is_told_of_and_outlasts_the_limit_of_its_steps(
    prepared: Callable[..., LiveLayout], make_setup: MakeSetup
) -> None:
    limit_s, told = 2.0, list[tuple[float, str]]()
    layout = prepared(
        make_setup(warm_start=WarmStart(steps=600, update_rows=8), patience=Patience(step_s=limit_s)),
        lambda text: told.append((time.monotonic(), text)),
    )
    assert (layout.initial_model / "model.safetensors").is_file()
    steps = [(at, text) for at, text in told if text.startswith("warm start ")]
    assert steps[-1][0] - steps[0][0] > limit_s, "the machine is too fast for this test: more steps"
    done = [int(text.split()[-1].partition("/")[0]) for _, text in steps]
    assert done == sorted(done)
    assert all(text.endswith("/600") for _, text in steps)


def test_a_death_during_the_warm_start_says_so_and_how_and_keeps_the_log(
    prepared: Callable[..., LiveLayout], make_setup: MakeSetup
) -> None:
    started: list[LocalHandle] = []

    class Noted(LocalLaunch):
        def start(self, worker: WorkerSpec, replies: Any) -> LocalHandle:
            started.append(super().start(worker, replies))
            return started[-1]

    def kill(text: str) -> None:
        if text.startswith("warm start"):
            os.kill(started[0].pid, signal.SIGKILL)

    with pytest.raises(
        DoraError, match=r"^warm start \d+/9000 failed: the process killed by SIGKILL"
    ) as raised:
        prepared(make_setup(warm_start=WarmStart(steps=9000, update_rows=8)), kill, Noted())
    assert kept_log(raised.value) == ""


def test_rows_whose_code_ends_the_process_are_named_with_the_exit_code(
    prepared: Callable[..., LiveLayout], make_setup: MakeSetup, tmp_path: Path
) -> None:
    ends = rows_of(tmp_path, "import os, sys\nprint('bye', file=sys.stderr, flush=True)\nos._exit(3)\n")
    with pytest.raises(
        DoraError, match=r"^reading the rows failed: the process exited with 3: bye"
    ) as raised:
        prepared(make_setup(data=ends))
    assert kept_log(raised.value) == "bye\n"


def test_rows_that_never_come_are_waited_for_no_longer_than_allowed(
    prepared: Callable[..., LiveLayout], make_setup: MakeSetup, tmp_path: Path
) -> None:
    hangs = rows_of(tmp_path, "import time\ntime.sleep(1e6)\n")
    told: list[str] = []
    with pytest.raises(DoraError, match=r"^reading the rows failed: nothing came of it for 1 s"):
        prepared(make_setup(data=hangs, patience=Patience(step_s=1.0)), told.append)
    assert "reading the rows" in told


def test_a_process_that_stands_still_is_noticed_by_its_silence(
    prepared: Callable[..., LiveLayout], make_setup: MakeSetup, tmp_path: Path
) -> None:
    stops = rows_of(tmp_path, "import os, signal\nos.kill(os.getpid(), signal.SIGSTOP)\n")
    with pytest.raises(DoraError, match=r"no sign of life for control.silence_s = 2 s"):
        prepared(make_setup(data=stops, control=Control(silence_s=2.0)))
