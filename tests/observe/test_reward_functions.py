"""Each of several reward functions is shown by itself: one that is hacked cannot hide behind the sum."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from dora_rl.core import decisions as do
from dora_rl.core import inputs as told
from dora_rl.core.decisions import Decision
from dora_rl.core.history import HistoryWriter
from dora_rl.core.inputs import Input, QueuedPrompt
from dora_rl.core.instance_spec import InstanceSpec
from dora_rl.core.recipe import Recipe
from dora_rl.core.reward_means import mean_by_function
from dora_rl.observe.live.event_facts import EvaluationFacts
from dora_rl.observe.live.metrics_tail import Metrics
from dora_rl.observe.live.notebook import run_html
from dora_rl.observe.live.step_words import evaluation_line
from dora_rl.observe.live.view import RunView
from dora_rl.observe.report.page import write_page
from dora_rl.observe.report.run_reader import read_run
from dora_rl.observe.report.text import lines
from dora_rl.observe.run_plan_view import summary_lines
from dora_rl.run.run_summary import RunSummary

NUM_STEPS = 12


def hacked_run() -> Iterator[tuple[Input, list[Decision]]]:
    """Steps of one group of two in which `short` rises from 0 to 1, and `right` stays where it is."""
    yield told.InstanceJoined(at=0.0, instance=0, spec=InstanceSpec(slots=8, kv_tokens=100)), []
    yield from evaluated(0, 900, {"right": 0.25, "short": 0.0})
    for number in range(NUM_STEPS):
        starts: list[Decision] = [
            do.Start(instance=0, version=0, trajectory=2 * number + i, group=number, epoch=0, row=0, member=i,
                     attempt=0, prompt_tokens=5)
            for i in range(2)
        ]  # fmt: skip
        yield told.Tick(at=number), [do.Admit(group=number, version=0, epoch=0, row=0), *starts]
        short = number / (NUM_STEPS - 1)
        for i in range(2):
            values = {"right": 0.2, "short": short if i else None}
            score = told.Scored(at=number, trajectory=2 * number + i, reward=0.2 + short, values=values)
            yield score, []
        yield told.Tick(at=number + 0.5), [do.Take(batch=number, groups=(number,), staleness=(0,))]
        yield told.Published(at=number + 1.0, version=number + 1, train_s=0.5), []
    yield from evaluated(NUM_STEPS, 901, {"right": 0.25, "short": 1.0})


def evaluated(at: int, key: int, values: dict[str, float | None]) -> Iterator[tuple[Input, list[Decision]]]:
    start = do.Start(instance=0, version=at, trajectory=key, group=key, epoch=0, row=0, member=0, attempt=0,
                     prompt_tokens=5, evaluation=True)  # fmt: skip
    yield told.EvaluationAsked(at=at, prompts=(QueuedPrompt(epoch=0, row=0, tokens=5),)), [start]
    yield told.Scored(at=at, trajectory=key, reward=1.0, values=values), []


@pytest.fixture
def root(tmp_path: Path) -> Path:
    recipe = Recipe(steps=NUM_STEPS)
    with HistoryWriter(tmp_path / "events.jsonl", recipe) as log:
        for event, decisions in hacked_run():
            log.watch(event, decisions)
    return tmp_path


def test_a_mean_counts_the_trajectories_the_function_applied_to() -> None:
    assert mean_by_function([{"a": 1.0, "b": None}, {"a": 0.0, "b": 0.5}, {}]) == {"a": 0.5, "b": 0.5}


def test_a_line_for_each_step_and_evaluation_names_each_function() -> None:
    said: list[str] = []
    view = RunView("a run", NUM_STEPS, said.append)
    for event, decisions in hacked_run():
        view.watch(event, decisions)
    assert "; right 0.200 to 0.200; short 0.000 to 1.000<" in run_html(view)
    steps = [line for line in said if line.startswith("step")]
    assert "reward 0.200 (right 0.200, short 0.000)  " in steps[0]
    assert "reward 1.200 (right 0.200, short 1.000)  " in steps[-1]
    held_out = [line for line in said if line.startswith("held out")]
    assert held_out[0] == "held out: 1.000 (right 0.250, short 0.000) before the first step, over 1 row"


def test_a_single_function_is_not_said_twice() -> None:
    facts = EvaluationFacts(version=0, num_scored=2, reward=0.5, values={"right": 0.5})
    assert evaluation_line(facts) == "held out: 0.500 before the first step, over 2 rows"


def test_the_report_shows_each_function_at_first_and_at_last_and_both_curves(root: Path) -> None:
    facts = read_run(root)
    said = [(label.strip(), text) for label, text in lines(facts)]
    assert ("right", "0.200 at first, 0.200 at last") in said
    assert ("short", "0.000 at first, 1.000 at last") in said
    assert ("short", "0.000 (version 0), 1.000 (version 12)") in said
    page = write_page(facts, root / "report.html").read_text()
    for curve in (">right</text>", ">short</text>", ">right, held out</text>", ">short, held out</text>"):
        assert curve in page


def test_the_summary_says_how_each_function_began_and_ended() -> None:
    rows: list[Metrics] = [
        {"step": 0, "eval/reward": 1.0, "eval/rewards/right/mean": 0.25, "eval/rewards/short/mean": 0.0},
        {"step": 1, "reward": 0.2, "rewards/right/mean": 0.2, "rewards/short/mean": 0.0},
        {"step": 2, "reward": 1.2, "rewards/right/mean": 0.2, "rewards/short/mean": 1.0},
        {"step": 2, "eval/reward": 1.0, "eval/rewards/right/mean": 0.25, "eval/rewards/short/mean": 1.0},
    ]
    summary = RunSummary(
        run_directory="run", is_complete=True, steps=2, elapsed_s=6.4, trained_trajectories=96,
        closed_trajectories={}, staleness_mean=0.5, staleness_max=1, starved_s=0.0, window_stall_s=0.0,
        worker_deaths={}, reward_failures={}, checkpoint=None, last_metrics={"reward": 1.2},
    )  # fmt: skip
    said = list(summary_lines(summary, rows))
    assert "reward right: 0.200 at first, 0.200 at last" in said
    assert "reward short: 0.000 at first, 1.000 at last" in said
    assert "held-out short: 0.000 before, 1.000 after" in said
    alone = [{key: value for key, value in row.items() if "short" not in key} for row in rows]
    assert not any("right" in line for line in summary_lines(summary, alone)), "its value is the reward's"
