"""A source of the user's own in a live run: its choices are the run's, and it cannot hang the run."""

from copy import deepcopy
from pathlib import Path

import pytest

from dora_rl.core.decisions import Admit
from dora_rl.core.errors import UserError
from dora_rl.core.inputs import PromptsOffered
from dora_rl.core.recipe import Patience
from dora_rl.core.recipe.data import DataConfig, OrderConfig, SourceConfig
from dora_rl.envs.data.rows import Row
from dora_rl.envs.prompt_offers import GroupScores, PromptOffers
from dora_rl.envs.prompt_source import GroupScore, PromptSource, ShuffledRows
from dora_rl.run.live_run import run_live
from dora_rl.run.open_run import replay_live
from dora_rl.run.run_setup import RunSetup
from dora_rl.run.worker_deaths import WorkerDied
from dora_rl.store.journal import Journal

from .conftest import MakeSetup, staged
from .sources import LearnableFirst, Sequel
from .test_crashes import KILL, run, summary

SOURCES = Path(__file__).with_name("sources.py")


def with_source(make_setup: MakeSetup, name: str, **order: object) -> RunSetup:
    train = SourceConfig(name="count", options={"rows": 64, "held_out_rows": 8})
    chosen = OrderConfig(name=f"{SOURCES}:{name}", **order)  # type: ignore[arg-type]
    return make_setup(data=DataConfig(train=train, order=chosen), patience=Patience(max_deaths=3))


def check_choices(setup: RunSetup, source: PromptSource) -> None:
    """What the journal says was chosen is what a source chooses that is told what the journal says."""
    scores, offers = GroupScores(group_size=setup.recipe.batch.group_size), PromptOffers([1] * 64)
    admitted, offered = [], []
    since_offered: list[PromptSource] = []
    (path,) = Path(setup.run_directory).glob("journal*")
    with Journal.open(path) as journal:
        for told, decisions in journal.events():
            if isinstance(told, PromptsOffered):
                rows = [prompt.row for prompt in told.prompts]
                # It may have chosen before it heard of scores that are older than its answer.
                assert rows in [state.choose(len(rows)) for state in (*since_offered, source)]
                epochs = [prompt.epoch for prompt in offers.offer(rows, 0.0).prompts]
                assert [prompt.epoch for prompt in told.prompts] == epochs
                source.offered(rows)
                since_offered = []
                offered += rows
            for score in scores.watch(told, decisions):
                since_offered.append(deepcopy(source))
                source.scored(score)
            admitted += [decision.row for decision in decisions if isinstance(decision, Admit)]
    assert admitted == offered[: len(admitted)]


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_a_source_that_hears_of_rewards_goes_on_where_it_was_when_everything_is_killed(
    make_setup: MakeSetup,
) -> None:
    setup = with_source(make_setup, "Sequel", options={"new": 0.5})
    assert run(setup, [["Take", KILL, "workers.source_worker"], ["Published", KILL, "self"]]).returncode == -9
    found = summary(run(setup, [], is_first=False))
    assert found["is_complete"]
    assert replay_live(Path(setup.run_directory)).difference is None
    rows = [Row(row=i, prompt="", columns={}) for i in range(64)]
    check_choices(setup, Sequel(rows, seed=setup.recipe.seed, new=0.5))


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_the_built_in_order_goes_on_where_it_was_though_rows_were_offered_and_not_started(
    make_setup: MakeSetup,
) -> None:
    setup = make_setup()
    assert run(setup, [["Published", KILL, "self"]]).returncode == -9
    assert summary(run(setup, [], is_first=False))["is_complete"]
    check_choices(setup, ShuffledRows(64, seed=setup.recipe.seed))


def test_a_source_that_raises_ends_the_run_with_what_and_where(make_setup: MakeSetup) -> None:
    setup = with_source(make_setup, "Raises")
    with pytest.raises(UserError, match=r"Raises' raised KeyError: 'difficulty'") as raised:
        run_live(setup, staged(setup))
    assert "sources.py, line" in str(raised.value.hint)


def test_a_source_that_hangs_is_started_again_and_then_ends_the_run(make_setup: MakeSetup) -> None:
    setup = with_source(make_setup, "Hangs", time_limit_s=0.5)
    with pytest.raises(WorkerDied, match=r"the source of prompts died 3 times .* data.order.time_limit_s"):
        run_live(setup, staged(setup))


def test_a_row_that_does_not_exist_ends_the_run(make_setup: MakeSetup) -> None:
    setup = with_source(make_setup, "Beyond")
    with pytest.raises(UserError, match="row 10000, which does not exist"):
        run_live(setup, staged(setup))


def test_a_run_whose_rows_are_exhausted_ends_with_a_sentence_and_a_checkpoint(make_setup: MakeSetup) -> None:
    setup = with_source(make_setup, "one_epoch")
    with pytest.raises(UserError, match="exhausted after 2 of 3 steps"):
        run_live(setup, staged(setup))
    assert (Path(setup.run_directory) / "checkpoints/step_00002").is_dir()


def test_a_curriculum_that_sees_rewards_finds_the_rows_there_is_something_to_learn_from() -> None:
    """One row in eight has mixed rewards; the shuffle meets them as often as they are."""
    rows = [Row(row=i, prompt="", columns={}) for i in range(64)]

    def num_mixed(source: PromptSource) -> int:
        total = 0
        for _ in range(40):
            chosen = source.choose(8) or ()
            source.offered(chosen)
            for row in chosen:
                rewards = (0.0, 1.0) if row % 8 == 0 else (0.0, 0.0)
                score = GroupScore(row=row, epoch=0, version=0, rewards=rewards, outcome="finished")
                source.scored(score)
                total += score.is_mixed
        return total

    assert num_mixed(ShuffledRows(64, seed=0)) == 40
    assert num_mixed(LearnableFirst(rows, seed=0)) > 200
