"""A run that goes on is given more instances, and fewer, and loses nothing by it."""

import threading
import time
from pathlib import Path

import pytest

from dora_rl.core.decisions import Decision
from dora_rl.core.errors import ConfigError
from dora_rl.core.inputs import Input, InstanceJoined, InstanceLost, Published
from dora_rl.core.recipe import Patience
from dora_rl.run import wished_instances
from dora_rl.run.instances import InstancePool
from dora_rl.run.live_run import run_live
from dora_rl.run.open_run import replay_live
from dora_rl.run.run_layout import LiveLayout
from dora_rl.run.run_setup import DeviceLayout, read_setup
from dora_rl.run.wished_instances import wish_instances
from dora_rl.run.worker_deaths import WorkerDeaths
from dora_rl.store.errors import RunError

from .conftest import MakeSetup, staged, written_down
from .test_parts import SilentLaunch
from .verdict import check_journal


def test_those_of_the_lowest_numbers_stay(make_setup: MakeSetup, tmp_path: Path) -> None:
    deaths, layout = WorkerDeaths(Patience(), tmp_path / "log"), LiveLayout(root=tmp_path)
    setup = make_setup(layout=DeviceLayout(instances=2))
    pool = InstancePool(setup, layout, deaths, (), launch=SilentLaunch())
    pool.resize(4)
    assert sorted(pool.processes) == [0, 1, 2, 3]
    kept = pool.processes[0]
    pool.resize(1)
    assert pool.processes == {0: kept}
    lost = pool.replace_lost()
    assert [(each.number, each.was_joined) for each in lost] == [(1, False), (2, False), (3, False)]
    assert "scaled to 1" in lost[0].reason
    assert pool.replace_lost() == []
    assert not deaths.total


def test_what_a_run_cannot_have_is_refused_and_a_run_that_stands_is_not_scaled(
    make_setup: MakeSetup, monkeypatch: pytest.MonkeyPatch
) -> None:
    setup = make_setup(layout=DeviceLayout(instance_device="cuda:0"))
    written_down(setup)
    root = Path(setup.run_directory)
    with pytest.raises(ConfigError, match="more instances on a GPU than the run was planned for"):
        wish_instances(root, 2)
    monkeypatch.setattr(wished_instances, "_TAKEN_UP_S", 0.1)
    with pytest.raises(RunError, match="nobody heard"):
        wish_instances(root, 1)
    assert not LiveLayout(root=root).wish.exists()


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_instances_join_and_leave_while_the_run_goes_on(make_setup: MakeSetup) -> None:
    setup = make_setup(steps=60)
    root, wanted, seen = Path(setup.run_directory), {3: 3, 40: 1}, list[str]()

    def watch(told: Input, decisions: list[Decision]) -> None:
        if isinstance(told, Published) and told.version in wanted:
            # As another process does, which waits for an answer.
            threading.Thread(target=wish_instances, args=(root, wanted[told.version])).start()
        if isinstance(told, Published) and 3 < told.version < 40 and len(seen) < 3:
            time.sleep(0.2)  # New instances take seconds to be up.
        if isinstance(told, InstanceJoined | InstanceLost):
            seen.append(f"{type(told).__name__} {told.instance}")

    summary = run_live(setup, staged(setup), [watch])
    assert summary.is_complete
    assert not summary.worker_deaths
    assert seen[0] == "InstanceJoined 0"
    assert sorted(seen[1:3]) == ["InstanceJoined 1", "InstanceJoined 2"]
    assert sorted(seen[3:]) == ["InstanceLost 1", "InstanceLost 2"]
    assert read_setup(LiveLayout(root=root).setup).devices.instances == 1
    check_journal(root)
    assert replay_live(root).difference is None
