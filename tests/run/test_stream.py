"""Rows that are a stream in a live run: read while it goes on, durable before they start."""

import json
from pathlib import Path
from typing import Any

import pytest

from dora_rl import resume
from dora_rl.core.decisions import Admit
from dora_rl.core.errors import UserError
from dora_rl.core.inputs import PromptsOffered
from dora_rl.core.recipe import Evaluation, Patience, Recipe
from dora_rl.core.recipe.data import DataConfig, OrderConfig, SourceConfig, TableConfig
from dora_rl.envs.data.rows import Row
from dora_rl.envs.tokenized_prompts import TokenizedPrompt
from dora_rl.run.live_run import run_live
from dora_rl.run.open_run import make_plane, replay_live
from dora_rl.run.prompt_table import PromptTable, RunPrompts
from dora_rl.run.run_layout import LiveLayout
from dora_rl.run.run_setup import RunSetup
from dora_rl.run.source_messages import SourceReady
from dora_rl.run.stream_feed import StreamFeed
from dora_rl.run.worker_deaths import WorkerDeaths, WorkerDied
from dora_rl.store.journal import Journal

from .conftest import MakeSetup, staged
from .test_crashes import KILL, run, summary
from .test_parts import SilentLaunch

SOURCES = Path(__file__).with_name("sources.py")


def with_stream(
    make_setup: MakeSetup, name: str, order: Any = None, held_out: Path | None = None, **changes: Any
) -> RunSetup:
    data = DataConfig(
        train=SourceConfig(name=f"{SOURCES}:{name}", stream=True),
        held_out=None if held_out is None else TableConfig(name=str(held_out)),
        order=order or OrderConfig(),
        max_prompt_tokens=8,
        overlong_prompts="skip",
    )
    return make_setup(data=data, **changes)


def admitted_places(setup: RunSetup) -> list[int]:
    """Places in the stream of the rows whose groups started, in their order; each is offered once."""
    layout = LiveLayout(root=Path(setup.run_directory))
    places, offered = [], []
    with Journal.open(layout.journal) as journal:
        prompts = RunPrompts(PromptTable.read(layout.prompts), journal)
        for told, decisions in journal.events():
            if isinstance(told, PromptsOffered):
                offered += [prompts.place(prompt.row) for prompt in told.prompts]
            places += [prompts.place(decision.row) for decision in decisions if isinstance(decision, Admit)]
    assert offered == sorted(set(offered))
    return places


def test_a_run_ends_in_order_when_its_stream_does(make_setup: MakeSetup) -> None:
    held_out = Path(make_setup().run_directory).with_name("test.jsonl")
    held_out.write_text('{"prompt": "a>d:"}\n')
    evaluation = Evaluation(every=3, max_rows=1)
    setup = with_stream(make_setup, "five_rows", held_out=held_out, evaluation=evaluation)
    done = run_live(setup, staged(setup))
    assert (done.is_complete, done.steps, done.steps_asked) == (True, 2, 3)
    lines = (Path(setup.run_directory) / "metrics.jsonl").read_text().splitlines()
    evaluated = [line["step"] for line in map(json.loads, lines) if "eval/prompts" in line]
    assert evaluated == [0, 2], "its last version too, though the third was to be that"
    assert done.closed_trajectories == {"left over: the stream ended": setup.recipe.batch.group_size}
    assert (Path(setup.run_directory) / "checkpoints/step_00002").is_dir()
    assert admitted_places(setup) == [0, 1, 2, 3, 5]
    assert done.overlong_rows == 1
    again = resume(setup.run_directory, progress=False, launch=NoLaunch())
    assert again.summary == done, "a finished run is shown, not opened again"
    assert replay_live(Path(setup.run_directory)).difference is None


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_a_stream_goes_on_behind_its_last_row_when_everything_is_killed(make_setup: MakeSetup) -> None:
    setup = with_stream(make_setup, "endless")
    assert run(setup, [["Take", KILL, "workers.source_worker"], ["Published", KILL, "self"]]).returncode == -9
    assert summary(run(setup, [], is_first=False))["is_complete"]
    places = admitted_places(setup)
    assert places == list(range(len(places)))
    assert replay_live(Path(setup.run_directory)).difference is None
    with Journal.open(LiveLayout(root=Path(setup.run_directory)).journal) as journal:
        # Batches a checkpoint covers need no rows any more.
        assert journal.covered_step == setup.recipe.steps
        with pytest.raises(Exception, match="no row 2 of a stream"):
            journal.streamed_row(2)


@pytest.mark.slow
def test_a_wrong_row_of_a_stream_ends_the_run_with_its_place(make_setup: MakeSetup) -> None:
    setup = with_stream(make_setup, "breaking")
    with pytest.raises(UserError, match="row 2: message 0 of the prompt, by 'user', has no 'content'"):
        run_live(setup, staged(setup))


@pytest.mark.slow
def test_a_stream_that_hangs_is_opened_again_and_then_ends_the_run(make_setup: MakeSetup) -> None:
    patience = Patience(max_deaths=2)
    setup = with_stream(make_setup, "halting", OrderConfig(time_limit_s=0.5), patience=patience)
    with pytest.raises(WorkerDied, match=r"the source of prompts died 2 times .* data.order.time_limit_s"):
        run_live(setup, staged(setup))


def test_a_row_whose_group_has_ended_is_read_again_and_not_kept(tmp_path: Path) -> None:
    prompt = TokenizedPrompt(row=Row(row=1, prompt="b", columns={}), token_ids=(2,))
    first = TokenizedPrompt(row=Row(row=0, prompt="a", columns={}), token_ids=(1,))
    with Journal.create(tmp_path / "journal", Recipe()) as journal:
        prompts = RunPrompts(PromptTable(train=(first,), held_out=(), stop_tokens=(), num_read=1), journal)
        streamed = prompts.add(prompt)
        journal.append([], [streamed])
        assert prompts[streamed.row] is prompt
        prompts.forget(streamed.row)
        # When its batch is taken, its table is asked for.
        assert prompts.data_source(streamed.row) is None
        assert prompts[streamed.row] == prompt
        assert not prompts._streamed


class NoLaunch(SilentLaunch):
    """Starts nothing."""

    def start(self, worker: Any, replies: Any) -> Any:
        raise AssertionError(f"nobody asked for {worker.name}")


class WordyLaunch(SilentLaunch):
    """Starts a reader that has said that it is ready, and counts how often it is listened to."""

    def __init__(self) -> None:
        self.heard = 0

    def start(self, worker: Any, replies: Any) -> Any:
        handle, launch = super().start(worker, replies), self

        def receive() -> list[Any]:
            launch.heard += 1
            return [SourceReady()] if launch.heard == 1 else []

        handle.receive = receive
        return handle


def test_a_reader_is_listened_to_while_the_first_rows_are_offered(
    make_setup: MakeSetup, tmp_path: Path
) -> None:
    setup, launch = with_stream(make_setup, "endless"), WordyLaunch()
    rows = tuple(TokenizedPrompt(row=Row(row=i, prompt="a", columns={}), token_ids=(1,)) for i in range(100))
    with Journal.create(tmp_path / "journal", setup.recipe) as journal:
        prompts = RunPrompts(PromptTable(train=rows, held_out=(), stop_tokens=(), num_read=100), journal)
        feed = StreamFeed(setup, prompts)
        feed.start(
            LiveLayout(root=tmp_path), WorkerDeaths(setup.recipe.patience, tmp_path / "book"), launch, {}
        )
        (offer,) = feed.read(make_plane(setup), 0.0).inputs
    assert isinstance(offer, PromptsOffered)
    assert [prompt.row for prompt in offer.prompts] == list(range(len(offer.prompts)))
    assert launch.heard == 1, "a word that is left lying would wake the loop again and again"
