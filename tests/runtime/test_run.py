"""Whole runs: real processes, a tiny model, a few steps."""

import json
from pathlib import Path

from dora_rl.core.history import History
from dora_rl.runtime.orchestrator.plane import replay_live
from dora_rl.runtime.run import run_live
from dora_rl.runtime.setup import Evaluation

from .conftest import MakeSetup
from .verdict import check_journal


def test_a_run_trains_its_steps_and_leaves_everything_behind(make_setup: MakeSetup) -> None:
    setup = make_setup(evaluation=Evaluation(every_steps=2, prompts=4))
    summary = run_live(setup)
    root = Path(setup.run_directory)
    assert summary.is_complete
    assert summary.steps == 3
    assert summary.trained_trajectories == 3 * 2 * 3
    check_journal(root)
    lines = [json.loads(line) for line in (root / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines if "reward" in line] == [1, 2, 3]
    assert {line["step"] for line in lines if "eval/reward" in line} == {0, 2}
    assert {path.name for path in (root / "checkpoints").iterdir()} == {"step_00002", "step_00003"}
    assert (root / "checkpoints/step_00003/model.safetensors").exists()
    assert (root / "finished.json").exists()
    replayed = replay_live(root)
    assert replayed.difference is None
    assert replayed.num_inputs == sum(1 for _ in History(root / "events.jsonl"))
