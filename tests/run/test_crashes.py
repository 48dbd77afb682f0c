"""Whatever dies and whenever, nothing is lost, nothing is trained on twice, and the run can go on."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest
from safetensors.torch import load_file

from dora_rl.core.errors import UserError
from dora_rl.core.history import History
from dora_rl.core.inputs import CheckpointDamaged, Fault, InstanceJoined, Replayed
from dora_rl.core.recipe import Checkpoints, Control, Evaluation, Patience
from dora_rl.core.recipe.data import DataConfig, RewardConfig, ScoringSettings, SourceConfig
from dora_rl.core.recipe.generation import ResponseSettings
from dora_rl.observe.report.run_reader import read_run
from dora_rl.run.live_run import run_live
from dora_rl.run.open_run import replay_live
from dora_rl.run.resume_changes import change_run
from dora_rl.run.rewards.queue import RewardsFailed
from dora_rl.run.run_layout import LiveLayout
from dora_rl.run.run_setup import DeviceLayout, RunSetup, write_setup
from dora_rl.run.worker_deaths import WorkerDied

from .conftest import MakeSetup, staged
from .verdict import check_journal
from .victim import Plan, children

KILL = "SIGKILL"


def run(
    setup: RunSetup, plan: Plan, *, is_first: bool = True, timeout_s: float = 120
) -> subprocess.CompletedProcess[str]:
    """Run or resume in a process of its own, which follows the plan."""
    where = Path(setup.run_directory)
    if is_first:
        where = where.with_suffix(".json")
        write_setup(setup, where)
        staged(setup)
    return subprocess.run(
        [sys.executable, str(Path(__file__).with_name("victim.py")), str(where), json.dumps(plan)],
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )


def summary(ended: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    assert ended.returncode == 0, ended.stderr[-2000:]
    found: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    return found


def check(setup: RunSetup) -> None:
    root = Path(setup.run_directory)
    check_journal(root)
    assert replay_live(root).difference is None
    lines = [json.loads(line) for line in LiveLayout(root=root).metrics_log.read_text().splitlines()]
    assert [line["step"] for line in lines if "step_time" in line] == list(range(1, setup.recipe.steps + 1))
    for line in lines:
        if "step_time" in line:
            (mean,) = (value for name, value in line.items() if name.startswith("rewards/"))
            assert mean == pytest.approx(line["reward"]), "of this step, not of another"
    evaluated = [line["step"] for line in lines if "eval/prompts" in line]
    steps, every = setup.recipe.steps, setup.recipe.evaluation.every
    assert sorted(evaluated) == (list(range(0, steps + 1, every)) if every else [])


def final_weights(setup: RunSetup) -> dict[str, Any]:
    path = Path(setup.run_directory) / f"checkpoints/step_{setup.recipe.steps:05}/model.safetensors"
    return load_file(path)


@pytest.mark.slow
@pytest.mark.timeout(150)
@pytest.mark.parametrize("victim", ["workers.instance", "workers.trainer", "workers.reward_worker"])
def test_a_worker_that_is_killed_is_replaced_and_nothing_is_lost(make_setup: MakeSetup, victim: str) -> None:
    setup = make_setup(steps=8, layout=DeviceLayout(instances=2))
    ended = summary(run(setup, [(40, KILL, victim), (90, KILL, victim)]))
    assert ended["is_complete"]
    if victim != "workers.reward_worker":
        assert sum(ended["worker_deaths"].values()) >= 2
    check(setup)


@pytest.mark.slow
@pytest.mark.timeout(150)
@pytest.mark.parametrize(
    ("victim", "name"),
    [
        ("workers.instance", "instance 0"),
        ("workers.trainer", "the trainer"),
        ("workers.reward_worker", "a reward worker"),
    ],
)
def test_a_worker_that_hangs_is_named_and_replaced(make_setup: MakeSetup, victim: str, name: str) -> None:
    control = Control(max_staleness=2, rebalance_period_s=0.3, silence_s=8.0)
    setup = make_setup(steps=8, control=control, scoring=ScoringSettings(time_limit_s=8.0, processes=1))
    ended = summary(run(setup, [(40, "SIGSTOP", victim)]))
    assert ended["is_complete"]
    assert ended["worker_deaths"] == {name: 1}
    assert name in (Path(setup.run_directory) / "logs/orchestrator.log").read_text()
    events = History(Path(setup.run_directory) / "events.jsonl")
    assert [event.worker for event, _ in events if isinstance(event, Fault)] == [name]
    check(setup)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", [0, 1])
def test_a_run_that_is_killed_again_and_again_loses_nothing(make_setup: MakeSetup, seed: int) -> None:
    draw = random.Random(seed)
    setup = make_setup(steps=8)
    ended = run(setup, [(draw.randint(5, 60), KILL, "self")])
    for _ in range(3):
        assert ended.returncode == -9, ended.stderr[-2000:]
        ended = run(setup, [(draw.randint(2, 50), KILL, "self")], is_first=False)
        if ended.returncode == 0:
            break
    if ended.returncode:
        ended = run(setup, [], is_first=False)
    assert summary(ended)["is_complete"]
    check(setup)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("schedule", ["partial", "dora"])
def test_evaluations_go_on_though_instances_and_everything_die(make_setup: MakeSetup, schedule: str) -> None:
    control = Control(schedule=schedule, max_staleness=2, rebalance_period_s=0.3, silence_s=20.0)
    setup = make_setup(steps=8, control=control, evaluation=Evaluation(every=1, max_rows=8))
    plan: Plan = [(40, KILL, "workers.instance"), (120, KILL, "workers.instance"), (200, KILL, "self")]
    ended = run(setup, plan)
    if ended.returncode:
        assert ended.returncode == -9, ended.stderr[-2000:]
        ended = run(setup, [(60, KILL, "workers.instance")], is_first=False)
    assert summary(ended)["is_complete"]
    check(setup)


@pytest.mark.slow
@pytest.mark.timeout(150)
def test_a_run_killed_after_its_last_step_still_writes_its_checkpoint(make_setup: MakeSetup) -> None:
    setup = make_setup(checkpoints=Checkpoints(every=50))
    assert run(setup, [("Finish", KILL, "self")]).returncode == -9
    assert summary(run(setup, [], is_first=False))["is_complete"]
    assert final_weights(setup)
    check(setup)


@pytest.mark.slow
@pytest.mark.timeout(150)
def test_a_damaged_newest_checkpoint_is_made_up_for_by_the_one_before(make_setup: MakeSetup) -> None:
    setup = make_setup(steps=6, checkpoints=Checkpoints(every=2))
    root = Path(setup.run_directory)
    assert run(setup, [("Finish", KILL, "self")]).returncode == -9
    *_, older, newest = sorted((root / "checkpoints").glob("step_*"))
    masters = newest / "trainer/masters.safetensors"
    content = bytearray(masters.read_bytes())
    content[-100] ^= 0xFF
    masters.write_bytes(content)
    ended = summary(run(setup, [], is_first=False))
    assert ended["is_complete"]
    assert ended["worker_deaths"] == {}
    events = [event for event, _ in History(root / "events.jsonl")]
    (damage,) = (event for event in events if isinstance(event, CheckpointDamaged))
    assert damage.version == int(older.name[5:])
    assert str(masters) in damage.problem
    replayed = [event for event in events if isinstance(event, Replayed)]
    assert replayed
    assert not any(event.num_different for event in replayed)
    check(setup)


@pytest.mark.slow
@pytest.mark.timeout(150)
def test_a_finished_run_goes_on_with_more_steps_and_more_instances(
    make_setup: MakeSetup,
) -> None:
    setup = make_setup(evaluation=Evaluation(every=1, max_rows=4))
    root = Path(setup.run_directory)
    assert summary(run(setup, []))["steps"] == 3
    changed = change_run(root, {"steps": 6, "devices.instances": 2})
    ended = summary(run(setup, [("StepsExtended", KILL, "workers.trainer")], is_first=False))
    assert (ended["steps"], ended["is_complete"]) == (6, True)
    check(changed)
    facts = read_run(root)
    assert (facts.recipe.steps, facts.state.version, facts.condition) == (6, 6, "finished")


@pytest.mark.slow
@pytest.mark.timeout(150)
@pytest.mark.parametrize("plan", [[], [("Take", "SIGINT", "self")]], ids=["due", "interrupted"])
def test_a_step_that_the_journal_does_not_know_yet_is_in_no_checkpoint(
    make_setup: MakeSetup, plan: Plan
) -> None:
    """Else the trainer would come back with a step that the journal still waits for, for ever."""
    setup = make_setup(checkpoints=Checkpoints(every=1))
    assert run(setup, [*plan, ("Published", KILL, "journal")]).returncode == -9
    assert not list((Path(setup.run_directory) / "checkpoints").iterdir())
    assert summary(run(setup, [], is_first=False))["is_complete"]
    check(setup)


@pytest.mark.slow
@pytest.mark.timeout(200)
def test_a_killed_run_ends_with_the_weights_of_one_left_alone(make_setup: MakeSetup, tmp_path: Path) -> None:
    engine = msgspec.structs.replace(make_setup().engine, is_batch_invariant=True)
    control = Control(schedule="sync", rebalance_period_s=0.3, silence_s=20.0)
    alone = make_setup(engine_config=engine, control=control, steps=5)
    killed = msgspec.structs.replace(alone, run_directory=str(tmp_path / "killed"))
    summary(run(alone, []))
    plan = [(20, KILL, "workers.trainer"), (30, KILL, "workers.instance"), (45, KILL, "self")]
    assert run(killed, plan).returncode == -9
    summary(run(killed, [], is_first=False))
    check(killed)
    expected, found = final_weights(alone), final_weights(killed)
    assert all((expected[name] == found[name]).all() for name in expected)


@pytest.mark.slow
@pytest.mark.timeout(150)
def test_an_interrupt_writes_a_checkpoint_and_a_second_one_leaves_at_once(make_setup: MakeSetup) -> None:
    setup = make_setup(steps=50, checkpoints=Checkpoints(every=50))
    ended = summary(run(setup, [(40, "SIGINT", "self")]))
    assert not ended["is_complete"]
    assert ended["steps"] > 0
    assert Path(ended["checkpoint"]).name == f"step_{ended['steps']:05}"
    began = time.monotonic()
    again = summary(run(setup, [(40, "SIGINT", "self"), (40, "SIGTERM", "self")], is_first=False))
    assert not again["is_complete"]
    assert again["checkpoint"] is None
    assert again["steps"] >= ended["steps"]
    assert time.monotonic() - began < 60


@pytest.mark.slow
def test_a_worker_that_dies_again_and_again_ends_the_run_with_the_reason(make_setup: MakeSetup) -> None:
    setup = make_setup(patience=Patience(max_deaths=1))
    with pytest.raises(WorkerDied, match=r"instance 0 died 1 times.*killed by SIGKILL\n"):
        run_live(
            setup,
            staged(setup),
            [lambda told, _: _kill_instances() if isinstance(told, InstanceJoined) else None],
        )
    events = [event for event, _ in History(Path(setup.run_directory) / "events.jsonl")]
    assert isinstance(events[-1], Fault)
    assert (events[-1].worker, events[-1].is_restarted) == ("instance 0", False)


@pytest.mark.slow
def test_reward_workers_that_die_over_everything_end_the_run_with_the_reason(make_setup: MakeSetup) -> None:
    deadly = RewardConfig(function=f"{Path(__file__).with_name('rewards.py')}:deadly_reward")
    setup = make_setup(rewards=(deadly,))
    with pytest.raises(
        RewardsFailed, match=r"failed for [6-9] trajectories in a row.*deadly_reward, process died.*SIGKILL"
    ):
        run_live(setup, staged(setup))


def _kill_instances() -> None:
    for pid in children("workers.instance"):
        os.kill(pid, signal.SIGKILL)


def test_a_set_up_that_cannot_work_leaves_nothing_behind(make_setup: MakeSetup) -> None:
    setup = make_setup(
        response=ResponseSettings(max_new_tokens=511),
        data=DataConfig(train=SourceConfig(name="arithmetic")),
    )
    with pytest.raises(UserError, match="max_new_tokens"):
        run_live(setup, staged(setup))
    assert not Path(setup.run_directory).exists()
