"""The orchestrator's small objects, without a process."""

import json
from pathlib import Path

import pytest

from dora_rl.core.decisions import Start
from dora_rl.core.errors import UserError
from dora_rl.envs.data.rows import Row
from dora_rl.envs.prompts import TokenizedPrompt
from dora_rl.rollout.requests import Sampling
from dora_rl.runtime.messages import Broken
from dora_rl.runtime.orchestrator.batches import group_of
from dora_rl.runtime.orchestrator.deaths import Deaths, WorkerDied, end_if_final
from dora_rl.runtime.orchestrator.metrics import Metrics
from dora_rl.runtime.orchestrator.plane import make_plane
from dora_rl.runtime.orchestrator.requests import Requests
from dora_rl.runtime.prompts import PromptLengths, PromptTable
from dora_rl.runtime.setup import read_setup, write_setup
from dora_rl.store.records import FinishedGroup, Response, StreamKey, Stretch, WholeTrajectory

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
    requests = Requests()
    first = requests.place(5, instance=0)
    requests.forget(5)
    second = requests.place(5, instance=0)
    assert requests.find(first.number, 0) is None
    assert requests.find(second.number, 0) is second
    assert requests.find(second.number, 1) is None


def test_a_trajectory_goes_on_behind_its_tokens_unless_it_is_another_attempt() -> None:
    requests = Requests()
    requests.draft(start(5, 0)).tokens += [7, 8]
    assert requests.draft(start(5, 1)).tokens == [7, 8]
    assert requests.draft(start(5, 1, attempt=1)).tokens == []


def test_held_out_rows_have_numbers_of_their_own_and_are_never_trained_on() -> None:
    prompts = table(num_train=3, num_held_out=2)
    lengths = PromptLengths(prompts)
    assert len(lengths) == 3
    assert [lengths[row] for row in prompts.evaluated(10)] == [4, 5]
    assert prompts.evaluated(1) == (3,)
    assert prompts[4].token_ids == (1,) * 5


def test_a_set_up_survives_being_written(make_setup: MakeSetup, tmp_path: Path) -> None:
    setup = make_setup()
    write_setup(setup, tmp_path / "setup.json")
    assert read_setup(tmp_path / "setup.json") == setup


def test_too_many_deaths_in_a_row_are_an_error_that_names_the_worker(tmp_path: Path) -> None:
    deaths = Deaths(2, tmp_path / "book")
    deaths.count("instance 3", "exited with 1", tmp_path)
    deaths.forgive()
    deaths.count("instance 3", "exited with 1", tmp_path)
    deaths.count("the trainer", "exited with 1", tmp_path)
    with pytest.raises(WorkerDied, match=r"instance 3 died 2 times .* killed by SIGKILL"):
        deaths.count("instance 3", "killed by SIGKILL", tmp_path)
    assert deaths.total == {"instance 3": 3, "the trainer": 1}
    assert len((tmp_path / "book").read_text().splitlines()) == 4


def test_a_users_mistake_is_not_tried_again() -> None:
    end_if_final(Broken(message="out of memory"))
    with pytest.raises(UserError, match="no such model"):
        end_if_final(Broken(message="no such model", is_users=True))


def test_a_journalled_group_is_trained_on_with_its_first_version_and_masks() -> None:
    whole = WholeTrajectory(
        trajectory=0,
        group=0,
        version=2,
        key=StreamKey(seed=0, epoch=0, row=0, member=0, attempt=0),
        prompt=(1, 2),
        response=Response(
            tokens=(5, 6, 7, 8),
            logprobs=(-1.0, -2.0, -3.0),
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
    assert member.is_policy == (True, False, True, True)
    assert member.reward != member.reward  # Not a number: masked, and counted.
    assert member.is_cut
    assert member.is_truncated


def test_metrics_of_steps_that_are_not_published_are_left_out(make_setup: MakeSetup, tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step":1,"at":1.0}\n{"step":2,"at":2.0}\n{"step":3,"at"')
    plane = make_plane(make_setup(), table(3, 0))
    metrics = Metrics(path, tmp_path / "board", plane, newest_version=1)
    metrics.write({"step": 2, "reward": None}, step=2)
    metrics.close()
    assert [json.loads(line)["step"] for line in path.read_text().splitlines()] == [1, 2]
