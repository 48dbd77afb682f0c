"""A report reads any run directory: finished, going on, torn, or hardly begun."""

import fcntl
import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from msgspec.structs import replace

from dora_rl.core import decisions as do
from dora_rl.core import inputs as told
from dora_rl.core.decisions import Decision
from dora_rl.core.errors import UserError
from dora_rl.core.history import HistoryWriter
from dora_rl.core.inputs import Input
from dora_rl.core.instance_spec import InstanceSpec
from dora_rl.core.recipe import Recipe
from dora_rl.core.struct_loader import build
from dora_rl.observe.live.completions import CompletionLog, read_completions
from dora_rl.observe.live.event_facts import EvaluationFacts
from dora_rl.observe.live.metrics_tail import MetricsTail
from dora_rl.observe.live.step_words import duration
from dora_rl.observe.report.page import write_page
from dora_rl.observe.report.plots import as_svg, plots
from dora_rl.observe.report.run_reader import read_run
from dora_rl.observe.report.text import lines
from dora_rl.sim.simulated_run import Result, simulate
from dora_rl.store.journal import Journal
from dora_rl.store.journal_records import Progress, PromptTokens, Rewarded

RECIPE = build(
    Recipe,
    {
        "steps": 5,
        "batch": {"groups": 8, "group_size": 4},
        "cluster": {"gpus": 12, "rollout_gpus": 4, "tensor_parallel": 1, "slots": 16},
        "task": {"rows": 100},
        "simulation": {"warmup_steps": 0},
    },
    "test",
)
BAD = {"text": "</pre><script>", "reward": 0.25, "values": {"f": 0.25}, "num_tokens": 4, "is_truncated": True}
GOOD = {"text": "right", "reward": 1.0, "values": {"g": None}, "num_tokens": 2, "is_truncated": False}
GROUP = {"step": 1, "group": 3, "version": 1, "prompt": "what is <b>?", "completions": [BAD, GOOD]}


@pytest.fixture
def run(tmp_path: Path) -> tuple[Path, Result]:
    with HistoryWriter(tmp_path / "events.jsonl", RECIPE) as log:
        return tmp_path, simulate(RECIPE, [log.watch])


def test_a_finished_run_is_summed_up_as_the_simulator_does(run: tuple[Path, Result]) -> None:
    root, result = run
    facts = read_run(root)
    assert facts.condition == "finished"
    assert facts.state.version == 5
    assert facts.starved_s == pytest.approx(result.starved_s)
    assert 0 <= facts.trainer_idle_fraction <= 1
    assert 0 <= facts.instance_idle_fraction <= 1
    assert sum(facts.seconds.trainer.values()) == pytest.approx(facts.elapsed_s)
    assert sum(facts.seconds.instances.values()) == pytest.approx(4 * facts.elapsed_s)
    said = dict(lines(facts))
    assert "generating (" in said["instances"]
    assert "training" in said["trainer"]


def test_the_page_has_curves_a_timeline_and_completions_and_needs_nothing_else(
    run: tuple[Path, Result],
) -> None:
    root, _ = run
    (root / "completions.jsonl").write_text(json.dumps(GROUP) + "\n" + '{"step": 2, "gro')
    (root / "metrics.jsonl").write_text("".join(f'{{"step": {i}, "entropy": {2 - i}.5}}\n' for i in range(3)))
    page = write_page(read_run(root), root / "report.html").read_text()
    for title in (
        "Reward",
        "Lengths, staleness and time",
        "Where the seconds went",
        "Inside the trainer",
        "Who generated which version",
    ):
        assert title in page
    assert page.count("<svg") == 5
    assert "http" not in page.replace("http://www.w3.org/", "").replace("http://purl.org/", "").replace(
        "http://creativecommons.org/", ""
    ).replace("https://matplotlib.org/", "")
    assert "&lt;/pre&gt;&lt;script&gt;" in page
    assert "<script" not in page
    assert page.index("right</pre>") < page.index("&lt;script&gt;"), "the better completion comes first"


def test_a_torn_log_is_read_as_far_as_it_goes(run: tuple[Path, Result]) -> None:
    root, _ = run
    log = root / "events.jsonl"
    log.write_bytes(log.read_bytes()[: len(log.read_bytes()) // 2])
    facts = read_run(root)
    assert 0 < facts.state.version < 5
    assert "broke off" in facts.condition or "not finished" in facts.condition
    write_page(facts, root / "report.html")


def test_a_run_that_just_began_has_a_report_too(run: tuple[Path, Result]) -> None:
    root, _ = run
    log = root / "events.jsonl"
    log.write_bytes(log.read_bytes().partition(b"\n")[0] + b"\n")
    facts = read_run(root)
    assert facts.steps == []
    assert "<html" in write_page(facts, root / "report.html").read_text()


def test_a_run_whose_lock_is_held_goes_on(run: tuple[Path, Result]) -> None:
    root, _ = run
    with (root / "lock").open("wb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert read_run(root).condition == "running"
    assert read_run(root).condition == "finished"


def test_a_directory_without_a_run_is_said_to_be_one(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is no run directory"):
        read_run(tmp_path)


def test_metrics_are_read_as_they_come_and_torn_lines_are_waited_for(tmp_path: Path) -> None:
    tail = MetricsTail(tmp_path / "metrics.jsonl")
    assert tail.read() == []
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 0, "reward": 0.5}\nnonsense\n{"step": 1, "rew')
        file.flush()
        assert tail.read() == [{"step": 0, "reward": 0.5}]
        file.write('ard": 1.0}\n')
        file.flush()
        assert tail.read() == [{"step": 1, "reward": 1.0}]
        assert tail.read() == []


def test_held_out_rewards_are_shown_from_the_first_to_the_last(run: tuple[Path, Result]) -> None:
    root, _ = run
    many = [EvaluationFacts(version=10 * i, num_scored=4, reward=i / 100) for i in range(30)]
    shown = dict(lines(replace(read_run(root), evaluations=many)))["held out"]
    assert shown.startswith("0.000 (version 0), …, 0.250 (version 250), ")
    assert shown.endswith("0.290 (version 290)")
    few = dict(lines(replace(read_run(root), evaluations=many[:3])))["held out"]
    assert few == "0.000 (version 0), 0.010 (version 10), 0.020 (version 20)"


def test_the_last_metrics_are_those_of_training_and_the_last_evaluation_stands_beside_them(
    run: tuple[Path, Result],
) -> None:
    root, _ = run
    rows = [{"step": 4, "grad_norm": 0.4}, {"step": 5, "grad_norm": 0.5}, {"step": 5, "eval/reward": 0.75}]
    (root / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    page = write_page(read_run(root), root / "report.html").read_text()
    last, evaluation = page[page.index("Last metrics") :].split("Last evaluation")
    assert "grad_norm: 0.5" in last
    assert "eval/reward" not in last
    assert "eval/reward: 0.75" in evaluation


def test_a_warning_that_was_given_stays_in_the_report(tmp_path: Path) -> None:
    root = tmp_path
    with HistoryWriter(root / "events.jsonl", RECIPE) as log:
        for event, decisions in rewarded_steps([1.0, 1.0, 1.0], [0.0, 1.0] * 3):
            log.watch(event, decisions)
    facts = read_run(root)
    assert [(each.step, each.now) for each in facts.warnings] == [(3, None)]
    page = write_page(facts, root / "report.html").read_text()
    assert "after step 3: in the last 3 steps the rewards of every group were all equal" in page
    assert "(no longer after step 4)" in page
    assert '<div class="warning">' not in page, "what no longer holds does not open the report"


def test_a_warning_that_holds_opens_the_report(tmp_path: Path) -> None:
    with HistoryWriter(tmp_path / "events.jsonl", RECIPE) as log:
        for event, decisions in rewarded_steps([1.0] * 4, []):
            log.watch(event, decisions)
    page = write_page(read_run(tmp_path), tmp_path / "report.html").read_text()
    assert page.index('<div class="warning">in the last 4 steps') < page.index('<table class="facts">')


def test_shares_and_waits_are_of_the_same_stretch_of_time(run: tuple[Path, Result]) -> None:
    root, _ = run
    facts = read_run(root)
    first = facts.steps[0].starved_s
    said = dict(lines(facts))["busy"]
    assert "from the first batch on; starved " in said
    assert f"(and {duration(first)} before it)" in said


def rewarded_steps(
    equal: Sequence[float], unequal: Sequence[float]
) -> Iterator[tuple[Input, list[Decision]]]:
    """Steps of one group of two: first both rewards are as given, then they differ."""
    spec = InstanceSpec(slots=8, kv_tokens=100)
    yield told.InstanceJoined(at=0.0, instance=0, spec=spec), []
    pairs = [(reward, reward) for reward in equal] + [(reward, reward + 1) for reward in unequal]
    for number, rewards in enumerate(pairs):
        starts: list[Decision] = [
            do.Start(instance=0, version=0, trajectory=2 * number + i, group=number, epoch=0, row=0, member=i,
                     attempt=0, prompt_tokens=5)
            for i in range(2)
        ]  # fmt: skip
        yield told.Tick(at=number), [do.Admit(group=number, version=0, epoch=0, row=0), *starts]
        for i, reward in enumerate(rewards):
            yield told.Scored(at=number, trajectory=2 * number + i, reward=reward), []
        yield told.Tick(at=number + 0.5), [do.Take(batch=number, groups=(number,), staleness=(0,))]
        yield told.Published(at=number + 1.0, version=number + 1, train_s=1.0), []


def test_completions_of_older_runs_count_from_0_and_are_read_as_counted_from_1(tmp_path: Path) -> None:
    path = tmp_path / "completions.jsonl"
    for first in (0, 1):
        path.write_text("".join(json.dumps({**GROUP, "step": first + i}) + "\n" for i in range(3)))
        assert [group.step for group in read_completions(path)] == [1, 2, 3]
    path.write_text('{"step": 0, "torn')
    assert read_completions(path) == []
    assert read_completions(tmp_path / "none.jsonl") == []


def spelled(ids: Sequence[int], *, with_special: bool = False) -> str:
    return f"{'with' if with_special else 'without'} special: {tuple(ids)}"


@pytest.mark.parametrize("first", [0, 1])
def test_completions_go_on_counting_as_the_file_does(tmp_path: Path, first: int) -> None:
    path = tmp_path / "completions.jsonl"
    path.write_text(json.dumps({**GROUP, "step": first}) + "\n")
    members = range(RECIPE.batch.group_size)
    starts: list[Decision] = [
        do.Start(instance=0, version=0, trajectory=i, group=0, epoch=0, row=0, member=i, attempt=0,
                 prompt_tokens=1)
        for i in members
    ]  # fmt: skip
    admitted = (told.Tick(at=0.0), [do.Admit(group=0, version=0, epoch=0, row=0), *starts])
    with Journal.create(tmp_path / "journal", RECIPE) as journal:
        journal.append([admitted], [PromptTokens(group=0, tokens=(7,))])
        for i in members:
            drawn = Progress(
                trajectory=i, attempt=0, start=0, tokens=(i,), version=0, logprobs=(0.0,), is_last=True
            )
            journal.append([], [drawn, Rewarded(trajectory=i, attempt=0, reward=1.0)])
    log = CompletionLog(path, journal=tmp_path / "journal", num_trajectories=4, decode=lambda: spelled)
    log.watch(told.Tick(at=1.0), [do.Take(batch=1, groups=(0,), staleness=(1,))])
    assert [json.loads(line)["step"] for line in path.read_text().splitlines()] == [first, first + 1]
    assert [group.step for group in read_completions(path)] == [1, 2]
    (group,) = log.of(2)
    assert group.prompt == "with special: (7,)", "a mistake of the chat template shows in them"
    assert group.completions[0].text == "without special: (0,)"
    assert [group.prompt for group in log.of(1)] == ["what is <b>?"], "written before the run was resumed"
    assert list(log.of(3)) == []


def test_the_close_up_ends_with_the_last_step_and_not_with_what_came_after(tmp_path: Path) -> None:
    with HistoryWriter(tmp_path / "events.jsonl", RECIPE) as log:
        for event, decisions in rewarded_steps([], [0.0] * 20):
            log.watch(event, decisions)
        log.watch(told.Tick(at=900.0), [])
    pictures = {title: as_svg(figure) for title, figure in plots(read_run(tmp_path))}
    assert ">minutes (height" in pictures["Who generated which version when"]
    assert ">seconds (height" in pictures["The last 8 steps"]


def test_of_a_long_run_stretches_are_drawn_and_no_timeline_of_all(tmp_path: Path) -> None:
    with HistoryWriter(tmp_path / "events.jsonl", RECIPE) as log:
        for event, decisions in rewarded_steps([], [0.0] * 1201):
            log.watch(event, decisions)
    pictures = {title: as_svg(figure) for title, figure in plots(read_run(tmp_path))}
    assert "Who generated which version when" not in pictures
    assert ">seconds of a step, mean of 5<" in pictures["Lengths, staleness and time"]
    assert sum(map(len, pictures.values())) < 600_000, "each step by itself was megabytes"


def test_the_report_of_a_run_on_cpus_does_not_ask_for_gpus(tmp_path: Path) -> None:
    with HistoryWriter(tmp_path / "events.jsonl", RECIPE) as log:
        for event, decisions in rewarded_steps([], [0.0] * 3):
            log.watch(event, decisions)
    assert "more rollout GPUs would help" in dict(lines(read_run(tmp_path)))["bottleneck"]
    (tmp_path / "setup.json").write_text('{"devices": {"instance_device": "cpu"}}')
    facts = read_run(tmp_path)
    assert "more instances, on more cores, would help" in dict(lines(facts))["bottleneck"]
