"""A recorded run replays to the same decisions; an altered record is found out, and where."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from dora_rl.core.errors import UserError
from dora_rl.core.history import History, HistoryWriter
from dora_rl.core.inputs import InstanceLost, StepLost
from dora_rl.core.recipe import Recipe
from dora_rl.sim.history_replay import replay_history
from dora_rl.sim.simulated_run import simulate
from dora_rl.sim.simulation_setup import complete, resolve

SMALL = (
    "batch.groups=12",
    "group_size=4",
    "gpus=16",
    "rollout_gpus=6",
    "tensor_parallel=1",
    "slots=16",
    "steps=8",
    "rows=200",
    "decode_floor_s=0.2",
)
FAULTY = ("instance_deaths_per_hour=1.0", "restart_s=20", "hang_share=0.3", "trainer_losses_per_hour=20")


def small(*assignments: str) -> Recipe:
    return complete(resolve(assignments=[*SMALL, *assignments]))


def record(recipe: Recipe, path: Path) -> Path:
    with HistoryWriter(path, recipe) as log:
        simulate(recipe, [log.watch])
    return path


def altered(path: Path, is_it: Callable[[dict[str, object]], bool], **changes: object) -> Path:
    """The history with the first line that `is_it` changed."""
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    next(line for line in lines if is_it(line)).update(changes)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


@pytest.mark.parametrize("estimates", ["learned", "half", "double"])
@pytest.mark.parametrize(
    "schedule",
    ["sync", "one_step_off", "steps_off", "partial", "counted", "async_ratio", "dora_onset", "dora"],
)
def test_a_recorded_run_replays_to_the_same_decisions(schedule: str, estimates: str, tmp_path: Path) -> None:
    recipe = small(f"schedule={schedule}", f"estimates={estimates}", *FAULTY)
    history = History(record(recipe, tmp_path / "run.jsonl"))
    replayed = replay_history(history)
    assert replayed.difference is None
    assert replayed.num_inputs == sum(1 for _ in history)
    assert any(isinstance(event, InstanceLost | StepLost) for event, _ in history), "nothing went wrong"
    assert history.torn_line is None


def test_multi_turn_runs_replay_too(tmp_path: Path) -> None:
    recipe = small("mean_turns=3", "failure_rate=0.02", "filter_zero_variance=true", "zero_variance_rate=0.2")
    assert replay_history(History(record(recipe, tmp_path / "run.jsonl"))).difference is None


def test_an_altered_decision_is_found(tmp_path: Path) -> None:
    path = record(small(), tmp_path / "run.jsonl")
    altered(path, lambda line: line.get("decision") == "Take", batch=7)
    difference = replay_history(History(path)).difference
    assert difference is not None
    assert "batch=7" in repr(difference.recorded)
    assert "batch=0" in repr(difference.replayed)


def test_an_altered_input_is_found_where_it_leads_elsewhere(tmp_path: Path) -> None:
    path = record(small(), tmp_path / "run.jsonl")
    altered(path, lambda line: line.get("input") == "Published", version=9)
    difference = replay_history(History(path)).difference
    assert difference is not None
    assert difference.refusal is not None


def test_a_run_that_knew_the_truth_cannot_be_replayed(tmp_path: Path) -> None:
    path = record(small("estimates=oracle"), tmp_path / "run.jsonl")
    with pytest.raises(UserError, match="cannot be replayed"):
        replay_history(History(path))
