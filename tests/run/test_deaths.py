"""Deaths of workers: counted over time, waited after, and when they end a run."""

from pathlib import Path
from typing import Any

import pytest

from dora_rl.core.recipe import Control, Patience
from dora_rl.run.instances import InstancePhase, InstancePool
from dora_rl.run.messages import RetireVersion
from dora_rl.run.run_layout import LiveLayout
from dora_rl.run.run_setup import DeviceLayout
from dora_rl.run.worker_deaths import WorkerDeaths, WorkerDied

from .conftest import MakeSetup
from .test_parts import SilentLaunch


def test_who_dies_again_waits_longer_each_time_and_what_is_long_ago_is_forgotten(tmp_path: Path) -> None:
    times = iter([0.0, 1.0, 3.0, 102.0, 103.0])
    patience = Patience(max_deaths=4, deaths_s=100.0)
    deaths = WorkerDeaths(patience, tmp_path / "book", clock=lambda: next(times))
    pauses = [deaths.count("the trainer", "exited with 1", tmp_path) for _ in range(4)]
    assert pauses == [0.0, 1.0, 2.0, 1.0], "the first two are forgotten by then"
    deaths.forgive()
    assert deaths.count("the trainer", "exited with 1", tmp_path) == 0.0


def test_who_died_too_often_is_relied_on_again_after_a_while(tmp_path: Path) -> None:
    times = iter([0.0, 1.0, 2.0, 101.0])
    deaths = WorkerDeaths(
        Patience(max_deaths=2, deaths_s=100.0), tmp_path / "book", clock=lambda: next(times)
    )
    for _ in range(2):
        deaths.count("instance 0", "killed by SIGKILL", tmp_path, is_needed=False)
    assert not deaths.is_reliable("instance 0")
    assert deaths.is_reliable("instance 0"), "of the last 100 s there is none but one"


def test_a_worker_that_the_run_does_without_may_die_for_ever(tmp_path: Path) -> None:
    deaths = WorkerDeaths(Patience(max_deaths=2), tmp_path / "book")
    pauses = [deaths.count("instance 3", "killed by SIGKILL", tmp_path, is_needed=False) for _ in range(12)]
    assert pauses[-1] == 60.0
    assert all(fault.is_restarted for fault in deaths.faults(1.0))
    with pytest.raises(WorkerDied, match="instance 3 died 13 times"):
        deaths.count("instance 3", "killed by SIGKILL", tmp_path)


def pool_of(make_setup: MakeSetup, root: Path, instances: int, **sections: Any) -> InstancePool:
    """Instances that say nothing by themselves, in a run whose workers may die twice."""
    setup = make_setup(patience=Patience(max_deaths=2), layout=DeviceLayout(instances=instances), **sections)
    deaths = WorkerDeaths(setup.recipe.patience, root / "book")
    return InstancePool(setup, LiveLayout(root=root), deaths, (), launch=SilentLaunch())


def kill(pool: InstancePool, number: int) -> None:
    pool.processes[number].handle.is_alive = False  # type: ignore[misc]


def all_join(pool: InstancePool) -> None:
    for process in pool.processes.values():
        process.enter(InstancePhase.JOINED)


def test_an_instance_is_started_again_for_ever_while_another_works(
    make_setup: MakeSetup, tmp_path: Path
) -> None:
    pool = pool_of(make_setup, tmp_path, 2)
    pool.processes[1].enter(InstancePhase.JOINED)
    for deaths in range(1, 5):
        kill(pool, 0)
        (lost,) = pool.replace_lost()
        assert lost.number == 0
        if deaths > 1:
            assert 0 not in pool.processes, "it waits a while"
            assert not pool.has_joined(0)
            pool.send(0, RetireVersion(version=0))
            pool._start_at[0] = 0.0
            assert pool.replace_lost() == []
        assert 0 in pool.processes


def test_where_no_instance_works_too_many_deaths_of_one_end_the_run(
    make_setup: MakeSetup, tmp_path: Path
) -> None:
    pool = pool_of(make_setup, tmp_path, 2)
    kill(pool, 0)
    pool.replace_lost()
    kill(pool, 0)
    with pytest.raises(WorkerDied, match="instance 0 died 2 times"):
        pool.replace_lost()


def test_instances_that_die_in_turns_do_not_keep_each_other_going_for_ever(
    make_setup: MakeSetup, tmp_path: Path
) -> None:
    pool = pool_of(make_setup, tmp_path, 2)
    for turn in range(3):
        all_join(pool)
        kill(pool, turn % 2)
        pool.replace_lost()
        pool._start_at = dict.fromkeys(pool._start_at, 0.0)
        pool.replace_lost()
    all_join(pool)
    kill(pool, 1)
    with pytest.raises(WorkerDied, match="instance 1 died 2 times"):
        pool.replace_lost()


def test_an_instance_that_has_joined_is_missed_after_its_silence_whatever_it_was_doing(
    make_setup: MakeSetup, tmp_path: Path
) -> None:
    pool = pool_of(make_setup, tmp_path, 1, control=Control(silence_s=5.0))
    pool.processes[0].enter(InstancePhase.JOINED)
    pool.processes[0].heard_at -= 4.9
    assert pool.replace_lost() == []
    pool.processes[0].heard_at -= 0.2
    (lost,) = pool.replace_lost()
    assert (lost.was_joined, lost.reason) == (True, "was silent for 5 s")


def test_an_instance_that_is_stopped_is_given_up_long_before_its_silence_is(
    make_setup: MakeSetup, tmp_path: Path
) -> None:
    pool = pool_of(make_setup, tmp_path, 1, control=Control(silence_s=60.0))
    process = pool.processes[0]
    process.handle.is_stopped = True  # type: ignore[misc]
    assert pool.replace_lost() == [], "it may be continued"
    assert process.stopped_at is not None
    process.stopped_at -= 4.8
    process.handle.is_stopped = False  # type: ignore[misc]
    assert pool.replace_lost() == []
    process.handle.is_stopped = True  # type: ignore[misc]
    assert pool.replace_lost() == [], "it was continued, and has its time again"
    process.stopped_at -= 5.1
    (lost,) = pool.replace_lost()
    assert lost.reason == "was stopped for 5 s"
