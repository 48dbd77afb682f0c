"""The orchestrator's small objects, without a process."""

import errno
import json
import time
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from safetensors import SafetensorError

from dora_rl.core.decisions import Start, Take
from dora_rl.core.errors import ConfigError, UserError
from dora_rl.core.inputs import Fault, OpenFailed, Published, Scored
from dora_rl.core.recipe import Control, Evaluation, Patience
from dora_rl.core.stream_key import StreamKey
from dora_rl.engines.native.transfer import write_exported
from dora_rl.engines.requests import Sampling
from dora_rl.envs.data.rows import Row
from dora_rl.envs.scoring.reward_messages import Metric, Reason, RewardFailure
from dora_rl.envs.tokenized_prompts import TokenizedPrompt
from dora_rl.launch.breaking import broken
from dora_rl.launch.protocol import WorkerSpec
from dora_rl.run.evaluations import EvaluationTracker
from dora_rl.run.instances import InstancePool
from dora_rl.run.journalled_groups import group_of
from dora_rl.run.live_run import resumable
from dora_rl.run.messages import (
    AbandonStep,
    Begin,
    Broken,
    CheckpointWritten,
    RetireVersion,
    StepPublished,
    TrainerReady,
    TrainStep,
    WriteCheckpoint,
)
from dora_rl.run.metrics_writer import MetricsWriter
from dora_rl.run.open_run import make_plane
from dora_rl.run.prompt_table import PromptLengths, PromptTable
from dora_rl.run.received import RecordStep
from dora_rl.run.request_table import RequestTable
from dora_rl.run.rewards.judge import Judgement
from dora_rl.run.rewards.queue import RewardFailures, RewardsFailed
from dora_rl.run.run_layout import LiveLayout
from dora_rl.run.run_setup import read_setup, write_setup
from dora_rl.run.trainer_process import TrainerProcess
from dora_rl.run.worker_deaths import WorkerDeaths, WorkerDied, end_if_final, how_it_ended
from dora_rl.store.errors import DiskFull, RunError
from dora_rl.store.journal import Journal
from dora_rl.store.journal_records import FinishedGroup, JournalledTrajectory, Response, Stretch
from dora_rl.trainer.checkpoint import CheckpointError

from .conftest import MakeSetup


def start(trajectory: int, instance: int, attempt: int = 0) -> Start:
    return Start(
        instance=instance,
        version=0,
        trajectory=trajectory,
        group=0,
        epoch=0,
        row=0,
        member=trajectory,
        attempt=attempt,
        prompt_tokens=3,
    )


def table(num_train: int, num_held_out: int) -> PromptTable:
    prompts = [
        TokenizedPrompt(row=Row(row=i, prompt="p", columns={}), token_ids=(1,) * (i + 1))
        for i in range(num_train + num_held_out)
    ]
    return PromptTable(
        train=tuple(prompts[:num_train]), held_out=tuple(prompts[num_train:]), stop_tokens=(2,)
    )


def test_a_late_word_about_an_earlier_request_finds_nothing() -> None:
    requests = RequestTable()
    first = requests.place(5, instance=0)
    requests.forget(5)
    second = requests.place(5, instance=0)
    assert requests.find(first.number, 0) is None
    assert requests.find(second.number, 0) is second
    assert requests.find(second.number, 1) is None


def test_a_trajectory_goes_on_behind_its_tokens_unless_it_is_another_attempt() -> None:
    requests = RequestTable()
    assert requests.begin(start(5, 0)).instance == 0
    requests.partial[5].tokens += [7, 8]
    assert requests.begin(start(5, 1)).instance == 1
    assert requests.partial[5].tokens == [7, 8]
    requests.begin(start(5, 1, attempt=1))
    assert requests.partial[5].tokens == []


def test_held_out_rows_have_numbers_of_their_own_and_are_never_trained_on() -> None:
    prompts = table(num_train=3, num_held_out=2)
    lengths = PromptLengths(prompts)
    assert len(lengths) == 3
    assert [(prompt.row, prompt.tokens) for prompt in prompts.evaluated(10)] == [(3, 4), (4, 5)]
    assert [prompt.row for prompt in prompts.evaluated(1)] == [3]
    assert prompts[4].token_ids == (1,) * 5


def test_a_set_up_survives_being_written(make_setup: MakeSetup, tmp_path: Path) -> None:
    setup = make_setup()
    write_setup(setup, tmp_path / "setup.json")
    assert read_setup(tmp_path / "setup.json") == setup


@pytest.mark.parametrize(("written", "number"), [({"steps": 3}, 1), ({"format": 99}, 99)])
def test_a_set_up_of_another_format_is_refused_with_a_way_out(
    tmp_path: Path, written: dict[str, int], number: int
) -> None:
    (tmp_path / "setup.json").write_text(json.dumps(written))
    with pytest.raises(ConfigError, match=rf"setup.json has format {number}, and .* reads format 2") as error:
        read_setup(tmp_path / "setup.json")
    assert "version of dora-rl that the run was started with" in str(error.value.hint)


def test_too_many_deaths_in_a_row_are_an_error_that_names_the_worker(tmp_path: Path) -> None:
    deaths = WorkerDeaths(Patience(max_deaths=2), tmp_path / "book")
    deaths.count("instance 3", "exited with 1", tmp_path)
    deaths.forgive()
    deaths.count("instance 3", "exited with 1", tmp_path)
    deaths.count("the trainer", "exited with 1", tmp_path)
    with pytest.raises(WorkerDied, match=r"instance 3 died 2 times .* killed by SIGKILL"):
        deaths.count("instance 3", "killed by SIGKILL", tmp_path)
    assert deaths.total == {"instance 3": 3, "the trainer": 1}
    assert len((tmp_path / "book").read_text().splitlines()) == 4


def test_every_death_is_told_once_and_the_last_as_one_that_nobody_starts_again(tmp_path: Path) -> None:
    deaths = WorkerDeaths(Patience(max_deaths=2), tmp_path / "book")
    deaths.note("a reward worker", "hung in f")
    deaths.count("the trainer", "exited with 1", tmp_path)
    assert [(fault.worker, fault.is_restarted) for fault in deaths.faults(5.0)] == [
        ("a reward worker", True),
        ("the trainer", True),
    ]
    with pytest.raises(WorkerDied):
        deaths.count("the trainer", "exited with 1", tmp_path)
    assert deaths.faults(6.0) == [
        Fault(at=6.0, worker="the trainer", reason="exited with 1", is_restarted=False)
    ]
    assert deaths.faults(7.0) == []


def test_last_words_are_quoted_of_a_process_that_ended_by_itself_with_an_error(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("KV 2.0 MiB\nRuntimeError: no\n")
    assert how_it_ended("exited with 1", None, log) == "exited with 1: RuntimeError: no"
    assert how_it_ended("killed by SIGABRT", None, log) == "killed by SIGABRT: RuntimeError: no"
    assert how_it_ended("killed by SIGKILL", None, log) == "killed by SIGKILL"
    assert how_it_ended("exited with 0", None, log) == "exited with 0"
    assert how_it_ended("killed by SIGKILL", "rank 1 died", log) == "killed by SIGKILL: rank 1 died"


class Failing:
    """Failures of a run whose clock is set by hand."""

    def __init__(self, root: Path, max_in_a_row: int) -> None:
        self.now = 0.0
        self.log = root / "rewards.log"
        self.book = RewardFailures(
            self.log, max_in_a_row=max_in_a_row, time_limit_s=10.0, clock=lambda: self.now
        )

    def judge(self, *reasons: Reason) -> None:
        failures = [RewardFailure(function="f", row=3, reason=each, detail="E: no") for each in reasons]
        self.book.judged(failures)
        self.book.check()


def test_a_batch_of_failures_in_a_row_ends_the_run_and_a_single_reward_begins_anew(tmp_path: Path) -> None:
    run = Failing(tmp_path, max_in_a_row=3)
    for _ in range(5):
        run.judge("raised")
        run.judge("not finite")
        run.judge()
    run.judge("raised")
    run.judge("process died")
    with pytest.raises(
        RewardsFailed, match="3 trajectories in a row, the last one by reward f, raised: E: no"
    ):
        run.judge("raised")
    assert run.book.total == {
        "failed: reward f, raised": 7,
        "failed: reward f, not finite": 5,
        "failed: reward f, process died": 1,
    }


def test_a_function_that_always_hangs_is_given_up_long_before_a_batch_of_it(tmp_path: Path) -> None:
    run = Failing(tmp_path, max_in_a_row=1000)
    for _ in range(7):
        run.now += 10.0
        run.judge("time limit")
    run.now += 10.0
    with pytest.raises(RewardsFailed, match="8 calls of reward functions in a row gave no answer"):
        run.judge("time limit")


def test_many_calls_that_wait_for_one_short_outage_are_survived(tmp_path: Path) -> None:
    run = Failing(tmp_path, max_in_a_row=1000)
    for _ in range(2):
        run.now += 10.0
        for _ in range(64):
            run.judge("time limit")
    run.now += 10.0
    run.judge()
    run.judge("time limit")
    assert run.book.total == {"failed: reward f, time limit": 129}


def test_tracebacks_are_written_once_a_call_and_not_without_end(tmp_path: Path) -> None:
    run = Failing(tmp_path, max_in_a_row=1000)
    of_group = RewardFailure(function="g", row=1, reason="raised", detail="of the whole group")
    for _ in range(4):
        run.book.judged([of_group])
    for _ in range(250):
        run.book.judged([RewardFailure(function="f", row=3, reason="raised", detail="Traceback")])
    run.book.close()
    log = run.log.read_text()
    assert (log.count("of the whole group"), log.count("Traceback")) == (1, 100)
    assert "failed: reward f, raised: 250 times" in log
    assert run.book.total["failed: reward g, raised"] == 4


def test_a_full_disk_is_not_tried_again_and_named_with_the_way_back(tmp_path: Path) -> None:
    full = OSError(errno.ENOSPC, "No space left on device")
    unwritten = CheckpointError("cannot write step_00001")
    unwritten.__cause__ = SafetensorError("I/O error: No space left on device (os error 28)")
    for error in (full, unwritten):
        with pytest.raises(DiskFull, match="no space is left on a disk"):
            end_if_final(broken(error))
    end_if_final(broken(SafetensorError("I/O error: File too large (os error 27)")))
    (tmp_path / "setup.json").touch()
    with (
        pytest.raises(
            DiskFull, match=f"no space is left to write {tmp_path}: the disk mounted at /"
        ) as ended,
        resumable(tmp_path),
    ):
        raise full
    assert ended.value.hint == f"free some space; then `dora train --resume {tmp_path}` goes on"


def test_a_run_with_functions_as_objects_is_resumed_from_python(tmp_path: Path) -> None:
    (tmp_path / "setup.json").touch()
    with pytest.raises(RewardsFailed) as ended, resumable(tmp_path, {"object:right": b""}):
        raise RewardsFailed("rewards failed", hint="mend the function")
    assert ended.value.hint == f"mend the function; then `dora_rl.resume('{tmp_path}', ...)` goes on"


def test_where_there_is_no_room_for_a_moving_request_its_kv_stays_behind(tmp_path: Path) -> None:
    class Whole:
        def to_bytes(self) -> bytes:
            return b"kv"

    assert write_exported(Whole(), tmp_path / "there") == 2  # type: ignore[arg-type]
    assert write_exported(Whole(), tmp_path / "not" / "there") == 0  # type: ignore[arg-type]


def test_a_users_mistake_is_not_tried_again() -> None:
    end_if_final(Broken(message="out of memory"))
    with pytest.raises(UserError, match="no such model"):
        end_if_final(Broken(message="no such model", is_lasting=True))


def test_a_journalled_group_is_trained_on_with_its_first_version_and_masks() -> None:
    whole = JournalledTrajectory(
        trajectory=0,
        group=0,
        version=2,
        key=StreamKey(seed=0, epoch=0, row=0, member=0, attempt=0),
        prompt=(1, 2),
        response=Response(
            tokens=(5, 6, 7, 8),
            logprobs=(-1.0, -2.0, -3.0),
            experts=(b"ab", b"", b"cd"),
            stretches=(
                Stretch(start=0, version=1),
                Stretch(start=1, version=None),
                Stretch(start=2, version=2),
            ),
        ),
        is_truncated=True,
        is_evaluation=False,
    )
    (member,) = group_of(FinishedGroup(group=0, version=1, members=(whole,)), Sampling(top_p=0.9)).members
    assert member.version == 1
    assert member.versions == (1, 2, 2)
    assert member.is_policy == (True, False, True, True)
    assert member.reward != member.reward  # Not a number: masked, and counted.
    assert member.is_cut
    assert member.is_truncated
    assert member.experts == (b"ab", b"", b"cd")


def publish(metrics: MetricsWriter, word: StepPublished, at: float) -> None:
    """A step is published, and the journal has it."""
    metrics.published(word, at)
    metrics.watch(Published(at=at, version=word.batch + 1, train_s=word.train_s), [])


def test_a_line_is_written_once_the_journal_has_the_step_and_comes_back_from_there(
    make_setup: MakeSetup, tmp_path: Path
) -> None:
    path, plane = tmp_path / "metrics.jsonl", make_plane(make_setup())
    metrics = MetricsWriter(path, tmp_path / "board", plane)
    publish(metrics, StepPublished(batch=0, train_s=1.0, publish_s=0.0), 3.0)
    step = metrics.published(StepPublished(batch=1, train_s=1.0, publish_s=0.0), 5.0)
    assert len(path.read_text().splitlines()) == 1, "killed now, the step would be trained again"
    metrics.close()
    again = MetricsWriter(path, tmp_path / "board", plane, newest_version=2, journalled={2: step.values})
    again.close()
    first, second = [json.loads(line) for line in path.read_text().splitlines()]
    assert (first["step"], second["step"]) == (1, 2)
    assert (second["at"], second["step_time"]) == (5.0, 2.0)


def test_metrics_of_steps_that_are_not_published_are_left_out(make_setup: MakeSetup, tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step":1,"at":1.0}\n{"step":2,"at":2.0}\n{"step":3,"at"')
    plane = make_plane(make_setup())
    metrics = MetricsWriter(path, tmp_path / "board", plane, newest_version=1)
    metrics.write({"step": 2, "reward": None}, step=2)
    metrics.close()
    assert [json.loads(line)["step"] for line in path.read_text().splitlines()] == [1, 2]


def test_what_rewards_log_and_how_often_they_fail_is_of_the_step(
    make_setup: MakeSetup, tmp_path: Path
) -> None:
    metrics = MetricsWriter(tmp_path / "metrics.jsonl", tmp_path / "board", make_plane(make_setup()))
    failure = RewardFailure(function="f", row=0, reason="raised", detail="E")

    def judge(tokens: float, *failures: RewardFailure) -> None:
        logged = (Metric(name="tokens", value=tokens), Metric(name="step_time", value=7.0))
        judgement = Judgement(trajectory=0, reward=None, values={}, failures=failures, metrics=logged)
        metrics.judged(judgement)

    judge(1.0, failure)
    judge(4.0, failure)
    publish(metrics, StepPublished(batch=0, train_s=1.0, publish_s=0.0), 3.0)
    judge(8.0)
    publish(metrics, StepPublished(batch=1, train_s=1.0, publish_s=0.0), 5.0)
    metrics.close()
    first, second = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert (first["tokens"], first["reward_failures"]) == (2.5, 2.0)
    assert (second["tokens"], second["reward_failures"]) == (8.0, 0.0)
    assert (second["step_time"], second["logged/step_time"]) == (2.0, 7.0), "the run's own names stay its own"


def test_rows_of_several_tables_have_metrics_of_their_own(make_setup: MakeSetup, tmp_path: Path) -> None:
    def group(row: int, *rewards: float | None) -> FinishedGroup:
        members = tuple(
            JournalledTrajectory(
                trajectory=i, group=row, version=0, key=StreamKey(seed=0, row=row, member=i), prompt=(),
                response=Response(), is_truncated=False, is_evaluation=False, reward=reward)
            for i, reward in enumerate(rewards)
        )  # fmt: skip
        return FinishedGroup(group=row, version=0, members=members)

    path, tables = tmp_path / "metrics.jsonl", ["math", "code", "code", None]
    metrics = MetricsWriter(
        path, tmp_path / "board", make_plane(make_setup()), data_source=lambda row: tables[row]
    )
    groups = [group(0, 1.0, 0.0), group(1, 1.0, 1.0), group(2, 0.0, None), group(3, 0.5)]
    metrics.took(Take(batch=0, groups=(0, 1, 2, 3), staleness=(0,) * 4), groups)
    publish(metrics, StepPublished(batch=0, train_s=1.0, publish_s=0.0), 3.0)
    metrics.close()
    line = json.loads(path.read_text())
    assert {name: value for name, value in line.items() if name.startswith("data_source/")} == {
        "data_source/math/reward": 0.5,
        "data_source/code/reward": pytest.approx(2 / 3),
        "data_source/math/groups": 1.0,
        "data_source/code/groups": 2.0,
    }


def test_an_evaluation_has_the_mean_of_each_reward_function(make_setup: MakeSetup, tmp_path: Path) -> None:
    metrics = MetricsWriter(tmp_path / "metrics.jsonl", tmp_path / "board", make_plane(make_setup()))
    metrics.evaluated(
        0, 5.0, [1.0, 0.0], [3, 4], [{"right": 1.0, "short": None}, {"right": 0.0, "short": 0.5}]
    )
    metrics.close()
    (line,) = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert (line["eval/rewards/right/mean"], line["eval/rewards/short/mean"]) == (0.5, 0.5)


def test_metrics_go_on_where_they_were(make_setup: MakeSetup, tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step":1,"at":4.0,"step_time":4.0}\n{"step":1,"at":5.0,"eval/prompts":8.0}\n')
    metrics = MetricsWriter(path, tmp_path / "board", make_plane(make_setup()), newest_version=1)
    metrics.evaluated(1, 5.0, [1.0], [3])
    word = StepPublished(batch=1, train_s=1.0, publish_s=0.1)
    publish(metrics, word, 7.5)
    metrics.close()
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [(line["step"], line.get("step_time")) for line in lines] == [(1, 4.0), (1, None), (2, 3.5)]


class Evaluated:
    """Keeps what an evaluation came to."""

    def __init__(self) -> None:
        self.rates: dict[str, float] = {}

    def evaluated(self, *figures: Any, samples: int, rates: dict[str, float]) -> None:
        """An evaluation is complete."""
        self.rates = rates


def test_the_last_version_is_evaluated_however_short_the_run() -> None:
    nobody: Any = None
    tracker = EvaluationTracker(Evaluation(every=10), 4, table(3, 2), nobody)
    assert [version for version in range(5) if tracker.due(version, 0.0)] == [0, 4]
    tracker = EvaluationTracker(Evaluation(every=2), 5, table(3, 2), nobody)
    assert [version for version in range(6) if tracker.due(version, 0.0)] == [0, 2, 4, 5]
    tracker = EvaluationTracker(Evaluation(every=0), 5, table(3, 2), nobody)
    assert not any(tracker.due(version, 0.0) for version in range(6))


def test_samples_of_a_row_are_drawn_apart_and_give_pass_at_k() -> None:
    kept = Evaluated()
    metrics: Any = kept
    tracker = EvaluationTracker(Evaluation(every=1, samples=2), 4, table(3, 2), metrics)
    (asked,) = tracker.due(0, 0.0)
    assert [(prompt.row, prompt.epoch) for prompt in asked.prompts] == [(3, 0), (3, 1), (4, 0), (4, 1)]
    starts: list[Any] = [
        replace(start(key, 0), row=prompt.row, epoch=prompt.epoch, evaluation=True)
        for key, prompt in enumerate(asked.prompts)
    ]
    tracker.watch(asked, starts)
    for key, reward in enumerate([1.0, 0.0, 0.2, 0.4]):
        tracker.watch(Scored(at=1.0, trajectory=key, reward=reward), [])
    assert kept.rates == {"pass@1": 0.25, "pass@2": 0.5}
    assert tracker.num_missing == 0


def test_an_evaluation_whose_environment_cannot_be_reset_is_not_waited_for() -> None:
    kept = Evaluated()
    metrics: Any = kept
    tracker = EvaluationTracker(Evaluation(every=1), 4, table(3, 2), metrics)
    (asked,) = tracker.due(0, 0.0)
    first, second = asked.prompts
    started: Any = replace(start(0, 0), row=first.row, epoch=first.epoch, evaluation=True)
    tracker.watch(asked, [started])
    refused = OpenFailed(at=1.0, epoch=first.epoch, row=first.row, reason="no", is_evaluation=True)
    tracker.watch(refused, [])
    assert tracker.num_missing == 2, "this one has started: another evaluation is meant"
    tracker.watch(replace(refused, epoch=second.epoch, row=second.row), [])
    assert tracker.num_missing == 1
    tracker.watch(Scored(at=2.0, trajectory=0, reward=1.0), [])
    assert tracker.num_missing == 0


@pytest.mark.parametrize(
    ("asked", "temperature"),
    [
        (Evaluation(), 0.0),
        (Evaluation(samples=4), 0.7),
        (Evaluation(samples=4, at_temperature=0.2), 0.2),
        (Evaluation(at_temperature=0.2), 0.2),
        (Evaluation(greedy=False), 0.7),
    ],
)
def test_one_sample_is_the_likeliest_and_several_are_drawn(asked: Evaluation, temperature: float) -> None:
    assert asked.sampling(Sampling(temperature=0.7)).temperature == temperature


def test_samples_that_would_all_be_the_same_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"evaluation\.samples = 4 of a row the same"):
        Evaluation(samples=4, greedy=True)


class SilentLaunch:
    """Starts workers that say nothing. Speaks Launch."""

    def start(self, worker: WorkerSpec, replies: Any) -> "Silent":
        return Silent()


class Silent:
    """A process that is there and says nothing, and what it was told. Speaks Handle."""

    def __init__(self) -> None:
        self.told: list[Any] = []
        self.is_alive = True
        self.is_stopped = False
        self.is_mid_message = False
        self.node = None
        self.is_placed = True

    def send(self, message: Any) -> None:
        self.told.append(message)

    def flush(self) -> bool:
        return True

    def fileno(self) -> int:
        return -1

    def receive(self) -> list[Any]:
        return []

    def end(self, within_s: float) -> str:
        return "killed by SIGKILL"


class Unmeasured:
    """Metrics that nobody wants."""

    def took(self, *batch: Any) -> None:
        """A batch was taken."""


def make_trainer(make_setup: MakeSetup, root: Path) -> TrainerProcess:
    """A trainer that says nothing by itself, ready, in a run where nothing happened yet."""
    setup, layout = make_setup(), LiveLayout(root=root)
    journal = Journal.create(layout.journal, setup.recipe)
    deaths = WorkerDeaths(Patience(), root / "book")
    metrics: Any = Unmeasured()
    evaluations = EvaluationTracker(setup.recipe.evaluation, 3, table(4, 0), metrics)
    trainer = TrainerProcess(setup, layout, journal, deaths, metrics, evaluations, launch=SilentLaunch())
    trainer.is_ready = True
    return trainer


def test_a_trainer_that_is_gone_has_no_part_of_a_step(make_setup: MakeSetup, tmp_path: Path) -> None:
    trainer = make_trainer(make_setup, tmp_path)
    for _ in range(2):
        trainer._has_part = True
        trainer.handle.is_alive = False  # type: ignore[misc]
        trainer.read(0.0)
    assert not trainer.handles, "after its second death it waits a while"
    assert not trainer._has_part, "else a checkpoint at the end would be given up for it"


def test_a_checkpoint_waits_until_the_journal_knows_the_step(make_setup: MakeSetup, tmp_path: Path) -> None:
    trainer = make_trainer(make_setup, tmp_path)
    trainer.take(Take(batch=0, groups=(), staleness=()))
    trainer.write_checkpoint()
    told: list[Any] = trainer.handle.told  # type: ignore[attr-defined]
    assert isinstance(told[-1], TrainStep)
    trainer.step_recorded(RecordStep(is_checkpoint_due=False))
    assert isinstance(told[-1], WriteCheckpoint)
    assert trainer.is_checkpoint_due, "until it is written"


def test_a_step_that_has_only_some_of_its_groups_is_forgotten_before_a_checkpoint(
    make_setup: MakeSetup, tmp_path: Path
) -> None:
    trainer = make_trainer(make_setup, tmp_path)
    told: list[Any] = trainer.handle.told  # type: ignore[attr-defined]
    trainer._has_part = True
    trainer.write_checkpoint()
    assert not any(isinstance(word, WriteCheckpoint) for word in told)
    assert trainer.abandon_part()
    trainer.write_checkpoint()
    assert [type(word) for word in told[-2:]] == [AbandonStep, WriteCheckpoint]


def test_a_step_that_has_changed_the_weights_is_not_forgotten(make_setup: MakeSetup, tmp_path: Path) -> None:
    setup = make_setup()
    twice = make_setup(batch=replace(setup.recipe.batch, updates=2))
    trainer = make_trainer(lambda: twice, tmp_path)  # type: ignore[arg-type]
    assert trainer.abandon_part(), "there is none"
    trainer._has_part = True
    assert not trainer.abandon_part()


def test_the_next_checkpoint_waits_for_the_last_one_and_is_not_forgotten(
    make_setup: MakeSetup, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = make_trainer(make_setup, tmp_path)
    told: list[Any] = trainer.handle.told  # type: ignore[attr-defined]
    trainer.write_checkpoint()
    trainer.take(Take(batch=0, groups=(), staleness=()))
    trainer.step_recorded(RecordStep(is_checkpoint_due=True))
    assert [type(word) for word in told if not isinstance(word, Begin)] == [WriteCheckpoint, TrainStep]
    monkeypatch.setattr(
        Silent, "receive", lambda self: [CheckpointWritten(version=0, directory="x", oldest=0)]
    )
    trainer.read(0.0)
    assert isinstance(told[-1], WriteCheckpoint)
    assert trainer.is_checkpoint_due
    trainer.read(0.0)
    assert not trainer.is_checkpoint_due


def test_a_trainer_that_died_over_a_checkpoint_is_asked_for_it_again(
    make_setup: MakeSetup, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = make_trainer(make_setup, tmp_path)
    trainer.write_checkpoint()
    trainer._start()
    assert trainer.is_checkpoint_due
    monkeypatch.setattr(Silent, "receive", lambda self: [TrainerReady(version=0, pid=1)])
    trainer.read(0.0)
    assert isinstance(trainer.handle.told[-1], WriteCheckpoint)  # type: ignore[attr-defined]


def test_a_trainer_that_starts_again_is_told_again_what_nobody_needs(
    make_setup: MakeSetup, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = make_trainer(make_setup, tmp_path)
    trainer.is_ready = False
    trainer.retire(0)
    monkeypatch.setattr(Silent, "receive", lambda self: [TrainerReady(version=0, pid=1)])
    trainer.read(0.0)
    assert trainer.handle.told[-1] == RetireVersion(version=0)  # type: ignore[attr-defined]


@pytest.mark.parametrize("ready", [TrainerReady(version=2, pid=1), TrainerReady(version=0, pid=1, newest=1)])
def test_a_journal_that_has_lost_its_end_is_not_gone_on_with(
    make_setup: MakeSetup, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ready: TrainerReady
) -> None:
    """Its log was damaged or removed: versions were trained of which it knows nothing."""
    trainer = make_trainer(make_setup, tmp_path)
    monkeypatch.setattr(Silent, "receive", lambda self: [ready])
    with pytest.raises(RunError, match=r"journal.* has lost its end: it leads to version 0") as refused:
        trainer.read(0.0)
    assert "-wal" in (refused.value.hint or "")


def test_an_instance_that_hangs_before_it_joins_is_started_again(
    make_setup: MakeSetup, tmp_path: Path
) -> None:
    setup = make_setup(control=Control(silence_s=0.05))
    deaths = WorkerDeaths(Patience(), tmp_path / "book")
    instances = InstancePool(setup, LiveLayout(root=tmp_path), deaths, (), launch=SilentLaunch())
    assert instances.replace_lost() == []
    time.sleep(0.06)
    (lost,) = instances.replace_lost()
    assert lost.reason == "was silent for 0.05 s"
    assert instances.replace_lost() == [], "the next one has its own time"
