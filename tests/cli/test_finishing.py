"""What is said when a run is over."""

import pytest

from dora_rl.observe.live.metrics_tail import Metrics
from dora_rl.observe.run_plan_view import summary_lines
from dora_rl.run.run_summary import RunSummary

SUMMARY = RunSummary(
    run_directory="run", is_complete=True, steps=40, elapsed_s=6.4, trained_trajectories=96,
    closed_trajectories={}, staleness_mean=0.5, staleness_max=1, starved_s=0.0, window_stall_s=0.0,
    worker_deaths={}, reward_failures={}, checkpoint=None, last_metrics={"reward": 0.5},
)  # fmt: skip


@pytest.mark.parametrize(
    ("evaluated", "words"),
    [
        ({0: 0.125, 20: 0.5, 40: 0.984}, ["held-out reward: 0.125 before, 0.984 after"]),
        ({0: 0.125, 30: 0.75}, ["held-out reward: 0.125 before, 0.750 after step 30"]),
        ({0: 0.125}, ["held-out reward: 0.125 before"]),
        ({40: None}, []),
        ({}, []),
    ],
)
def test_the_held_out_reward_is_said_from_the_first_evaluation_to_the_last(
    evaluated: dict[int, float | None], words: list[str]
) -> None:
    trained: Metrics = {"step": 40, "reward": 0.5}
    rows: list[Metrics] = [trained, *({"step": k, "eval/reward": v} for k, v in evaluated.items())]
    said = list(summary_lines(SUMMARY, rows))
    assert "reward of the last step: 0.500" in said
    assert [line for line in said if line.startswith("held-out")] == words


def test_the_time_of_the_steps_is_told_from_that_of_the_command() -> None:
    assert next(summary_lines(SUMMARY, (), 21.6)).startswith("finished: 40 steps in 6.4 s (21.6 s with prep")
    assert next(summary_lines(SUMMARY)).startswith("finished: 40 steps in 6.4 s, 96 ")
