"""Whole runs: real processes, a tiny model, a few steps."""

import json
import os
import signal
import stat
from pathlib import Path
from typing import Any, get_args

import pytest

from dora_rl.core.history import History
from dora_rl.core.inputs import Input, Published, Scored
from dora_rl.core.recipe import Checkpoints, Control, Evaluation, ScheduleName
from dora_rl.core.recipe.data import RewardConfig
from dora_rl.core.recipe.generation import ResponseSettings
from dora_rl.run.live_run import resume_live, run_live
from dora_rl.run.open_run import replay_live
from dora_rl.run.rewards.queue import RewardsFailed
from dora_rl.run.run_setup import DeviceLayout

from .conftest import EVEN_REWARD, MakeSetup, staged
from .verdict import check_journal


@pytest.mark.timeout(120)
def test_a_run_trains_its_steps_and_leaves_everything_behind(make_setup: MakeSetup) -> None:
    ranked = RewardConfig(function=f"{Path(__file__).with_name('rewards.py')}:ranked_reward")
    setup = make_setup(
        evaluation=Evaluation(every=2, max_rows=4, samples=2, pass_reward=0.3),
        rewards=(RewardConfig(function=EVEN_REWARD), ranked),
    )
    summary = run_live(setup, staged(setup))
    root = Path(setup.run_directory)
    assert summary.is_complete
    assert summary.reward_failures == {}
    assert summary.steps == 3
    assert summary.trained_trajectories == 3 * 2 * 3
    check_journal(root)
    lines = [json.loads(line) for line in (root / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines if "reward" in line] == [1, 2, 3]
    evaluated = {line["step"]: line for line in lines if "eval/reward" in line}
    assert set(evaluated) == {0, 2, 3}, "the last version too"
    assert all(line["eval/prompts"] == 4 for line in evaluated.values())
    assert all(0 <= line["eval/pass@1"] <= line["eval/pass@2"] <= 1 for line in evaluated.values())
    assert {path.name for path in (root / "checkpoints").iterdir()} == {"step_00002", "step_00003"}
    assert (root / "checkpoints/step_00003/model.safetensors").exists()
    assert (root / "finished.json").exists()
    assert {mode_of(path) for path in root.rglob("*") if path.is_file()} == {mode_of(root / "recipe.yaml")}
    replayed = replay_live(root)
    assert replayed.difference is None
    assert replayed.num_inputs == sum(1 for _ in History(root / "events.jsonl"))


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.timeout(120)
def test_a_run_left_after_its_last_step_and_before_its_checkpoint_is_not_complete(
    make_setup: MakeSetup,
) -> None:
    setup = make_setup(checkpoints=Checkpoints(every=100))

    def leave(event: Input, _: object) -> None:
        if isinstance(event, Published) and event.version == setup.recipe.steps:
            for _ in range(2):
                os.kill(os.getpid(), signal.SIGINT)

    summary = run_live(setup, staged(setup), [leave])
    root = Path(setup.run_directory)
    assert (summary.steps, summary.is_complete, summary.checkpoint) == (setup.recipe.steps, False, None)
    assert not (root / "finished.json").exists()
    summary = resume_live(root)
    assert summary.is_complete
    assert summary.checkpoint == str(root / "checkpoints/step_00003")
    check_journal(root)


@pytest.mark.timeout(120)
def test_a_reward_that_always_raises_ends_the_run_with_its_traceback_in_a_log(make_setup: MakeSetup) -> None:
    broken = RewardConfig(function=f"{Path(__file__).with_name('rewards.py')}:broken_reward")
    setup = make_setup(rewards=(broken,))
    root = Path(setup.run_directory)
    with pytest.raises(RewardsFailed, match=r"in a row.*broken_reward, raised: ZeroDivisionError") as ended:
        run_live(setup, staged(setup))
    assert str(root / "logs/rewards.log") in (ended.value.hint or "")
    log = (root / "logs/rewards.log").read_text()
    for words in ("about to divide", "failed: reward broken_reward, raised; row", "in broken_reward\n"):
        assert words in log
    scored = [event for event, _ in History(root / "events.jsonl") if isinstance(event, Scored)]
    assert len(scored) >= setup.recipe.batch.trajectories
    assert {event.failures[0].detail for event in scored} == {"ZeroDivisionError: division by zero"}
    assert replay_live(root).difference is None


@pytest.mark.slow
@pytest.mark.timeout(120)
@pytest.mark.parametrize("schedule", get_args(ScheduleName))
def test_every_schedule_runs_and_keeps_its_laws(make_setup: MakeSetup, schedule: ScheduleName) -> None:
    control = Control(schedule=schedule, max_staleness=2, rebalance_period_s=0.3, silence_s=20.0)
    setup = make_setup(control=control, steps=5)
    assert run_live(setup, staged(setup)).steps == 5
    check_journal(Path(setup.run_directory))
    assert replay_live(Path(setup.run_directory)).difference is None


@pytest.mark.slow
@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("devices", "control"),
    [
        (DeviceLayout(instances=3), {"placement": "exclusive", "active_groups": 6}),
        (DeviceLayout(instances=3), {"placement": "exclusive", "active_groups": 6, "kv_reuse": False}),
        (DeviceLayout(instances=2, is_elastic=True), {}),
        (DeviceLayout(), {"stream": True}),
    ],
    ids=["moves", "moves without KV", "elastic", "streaming"],
)
def test_instances_and_trainer_share_the_work_in_every_way(
    make_setup: MakeSetup, devices: DeviceLayout, control: dict[str, Any]
) -> None:
    setup = make_setup(
        layout=devices,
        control=Control(max_staleness=3, rebalance_period_s=0.2, silence_s=20.0, **control),
        steps=8,
        response=ResponseSettings(max_new_tokens=300, stop_strings=("a",)),
    )
    summary = run_live(setup, staged(setup))
    assert summary.steps == 8
    assert summary.worker_deaths == {}
    check_journal(Path(setup.run_directory))
    assert replay_live(Path(setup.run_directory)).difference is None
