"""The last moments of a run, and what is made up for afterwards."""

import json
import os
import signal
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dora_rl.api import Run
from dora_rl.api import resume as resume_in_python
from dora_rl.api.entry_points import _interrupts_told
from dora_rl.api.run_handle import Interrupted
from dora_rl.core.history import History
from dora_rl.launch.waiting import Interrupts, undisturbed
from dora_rl.run.run_layout import LiveLayout
from dora_rl.run.run_summary import RunSummary

from .conftest import MakeSetup, written_down
from .learning import Command, begin, finished, num_published

SMALL = ("steps=3", "batch.groups=4", "batch.group_size=4", "checkpoints.every=2")

SUMMARY = RunSummary(
    run_directory="run",
    is_complete=True,
    steps=3,
    elapsed_s=1.0,
    trained_trajectories=18,
    closed_trajectories={},
    staleness_mean=0.0,
    staleness_max=0,
    starved_s=0.0,
    window_stall_s=0.0,
    worker_deaths={},
    reward_failures={},
    checkpoint=None,
    last_metrics={},
)


def damage(log: Path, how: str) -> None:
    lines = log.read_bytes().splitlines(keepends=True)
    match how:
        case "empty":
            log.write_bytes(b"")
        case "a stray line":
            log.write_bytes(b"".join([*lines[:1], b"what is this\n", *lines[1:]]))
        case "a hole":
            log.write_bytes(b"".join([*lines[:1], *lines[2:], b"\0" * 64]))


@pytest.fixture
def over(make_setup: MakeSetup) -> LiveLayout:
    """A run that is finished, as far as its directory says."""
    setup = make_setup()
    written_down(setup)
    layout = LiveLayout(root=Path(setup.run_directory))
    layout.finished.write_bytes(msgspec.json.encode(SUMMARY))
    return layout


@pytest.mark.parametrize("how", ["empty", "a stray line", "a hole"])
def test_resuming_a_finished_run_returns_it_and_mends_its_log(over: LiveLayout, how: str) -> None:
    whole = over.events.read_bytes()
    damage(over.events, how)
    run = resume_in_python(over.root, progress=False)
    assert run.is_complete
    assert run.summary == SUMMARY
    assert over.events.read_bytes() == whole


class LateInterrupt:
    """Work that is interrupted after its run was over, or before."""

    def __init__(self, layout: LiveLayout) -> None:
        self.run = Run(layout.root)
        self.interrupts = Interrupts()

    def __call__(self) -> RunSummary:
        raise KeyboardInterrupt


def test_an_interrupt_after_the_end_of_a_run_does_not_change_how_it_ended(over: LiveLayout) -> None:
    work: Any = LateInterrupt(over)
    with _interrupts_told(work):
        work()
    assert work.run.summary == SUMMARY
    over.finished.unlink()
    work = LateInterrupt(over)
    with pytest.raises(Interrupted), _interrupts_told(work):
        work()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_do_not_disturb_the_last_words(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    with undisturbed():
        os.kill(os.getpid(), number)
    assert signal.getsignal(number) is before


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_a_run_whose_last_moment_is_disturbed_ends_well_and_goes_on(tmp_path: Path) -> None:
    """Killed before its report; resumed, with a signal at the same moment; extended with a damaged log."""
    root = tmp_path / "run"
    layout, report = LiveLayout(root=root), root / "report.html"
    command = begin(root, *SMALL)
    command.wait_until(layout.finished.exists)
    command.kill_all()
    report.unlink(missing_ok=True)
    assert finished(again(root), within_s=60)["is_complete"]
    assert report.exists()

    damage(layout.events, "a hole")
    command = again(root, "steps=5")
    command.wait_until(lambda: num_published(root) == 5 and layout.finished.exists())
    os.kill(command._process.pid, signal.SIGTERM)
    assert finished(command, within_s=60)["steps"] == 5
    assert report.exists()
    assert sum(1 for _ in History(layout.events)) > 0
    steps = [json.loads(line)["step"] for line in layout.metrics_log.read_text().splitlines()]
    assert steps == [1, 2, 3, 4, 5]
    assert not list(root.rglob(".*.partial"))


def again(root: Path, *sets: str) -> Command:
    return Command(
        root, "--resume", str(root), "--json", *(word for each in sets for word in ("--set", each))
    )
