"""A whole run whose workers are all started by another launch: none is our child, and each dials back."""

import os
import signal
from pathlib import Path

import pytest

from dora_rl.core.decisions import Decision
from dora_rl.core.inputs import Input
from dora_rl.prepare.preparation import Preparation
from dora_rl.run.live_run import resume_live, run_live
from dora_rl.run.open_run import replay_live
from dora_rl.run.run_setup import DeviceLayout

from ..launch.dialled import DialledLaunch
from .conftest import MakeSetup
from .verdict import check_journal

KINDS = {"the preparation", "the trainer", "instance 0", "instance 1", "a reward worker"}


class Killer:
    """Kills the newest worker of a name after so many inputs, or interrupts the run itself."""

    def __init__(self, launch: DialledLaunch, plan: dict[int, str]) -> None:
        self._launch = launch
        self._plan = plan
        self._num_inputs = 0

    def __call__(self, told: Input, decisions: list[Decision]) -> None:
        self._num_inputs += 1
        name = self._plan.get(self._num_inputs)
        if name == "the run":
            os.kill(os.getpid(), signal.SIGINT)
        elif name is not None:
            assert not any("-m\0dora_rl" in line for line in direct_children())
            pid = next(handle.pid for spec, handle in reversed(self._launch.started) if spec.name == name)
            assert pid is not None
            os.kill(pid, signal.SIGKILL)


def direct_children() -> list[str]:
    """Their command lines."""
    pids = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split()
    return [Path(f"/proc/{pid}/cmdline").read_text() for pid in pids]


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_every_kind_of_worker_runs_through_any_launch_and_its_death_is_noticed(make_setup: MakeSetup) -> None:
    setup = make_setup(steps=6, layout=DeviceLayout(instances=2, trainer_ranks=2))
    root, launch = Path(setup.run_directory), DialledLaunch()
    killer = Killer(launch, {30: "instance 0", 50: "a reward worker", 60: "the run"})
    with Preparation(setup.recipe, str(root), launch=launch) as preparation:
        preparation.plan()
        interrupted = run_live(setup, preparation.finish(), [killer], launch=launch)
    assert not interrupted.is_complete
    assert {spec.name for spec, _ in launch.started} == KINDS
    assert interrupted.worker_deaths == {"instance 0": 1, "a reward worker": 1}
    resumed = resume_live(root, [Killer(launch, {30: "the trainer"})], launch=launch)
    assert resumed.is_complete
    assert resumed.worker_deaths == {"the trainer": 1}
    check_journal(root)
    assert replay_live(root).difference is None
