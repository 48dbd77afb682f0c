"""What may be changed when a run goes on, and what is refused by name."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from msgspec.structs import replace

from dora_rl.core.errors import ConfigError
from dora_rl.core.recipe import Evaluation
from dora_rl.core.recipe.trainer_config import OptimizerConfig, ScheduleConfig
from dora_rl.run.resume_changes import change_run
from dora_rl.run.run_layout import LiveLayout
from dora_rl.run.run_setup import read_setup, write_setup

from .conftest import MakeSetup, written_down


@pytest.fixture
def begun(make_setup: MakeSetup) -> Path:
    return begin(make_setup())


def begin(setup: Any) -> Path:
    written_down(setup)
    return Path(setup.run_directory)


def edit(path: Path, section: str, key: str, value: Any) -> None:
    tree = yaml.safe_load(path.read_text())
    tree[section][key] = value
    path.write_text(yaml.safe_dump(tree))


def test_a_run_is_extended_and_both_files_say_so(begun: Path) -> None:
    layout, told = LiveLayout(root=begun), list[str]()
    layout.finished.write_text("{}")
    assert change_run(begun, {"steps": 7}, told.append).recipe.steps == 7
    assert told == ["steps was 3 and is now 7"]
    assert read_setup(layout.setup).recipe.steps == layout.read_recipe().steps == 7
    assert not layout.is_finished, "there is more to do"
    told.clear()
    change_run(begun, {}, told.append)
    assert not told, "it was told once"


def test_nothing_asked_for_changes_nothing(begun: Path) -> None:
    layout = LiveLayout(root=begun)
    layout.finished.write_text("{}")
    before = layout.setup.read_bytes(), layout.recipe.read_bytes()
    change_run(begun, {})
    assert (layout.setup.read_bytes(), layout.recipe.read_bytes()) == before
    assert layout.is_finished


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("batch.groups", 4, "batch.groups is 2 in the run .* and cannot become 4 when it goes on"),
        ("seed", 5, "seed is 0 in the run .* and cannot become 5"),
        ("max_staleness", 1, r"control.max_staleness is 2 in the run .* and cannot become 1"),
        ("learning_rate", 1e-5, r"optimizer.learning_rate is 0.001 in the run .* and cannot become 1e-05"),
        ("steps", 2, "steps is 3 in the run .* and cannot become 2: it may only grow"),
        ("stepps", 2, "unknown key 'stepps'"),
    ],
)
def test_what_decided_about_the_past_is_refused_by_name(
    begun: Path, key: str, value: Any, message: str
) -> None:
    before = LiveLayout(root=begun).setup.read_bytes()
    with pytest.raises(ConfigError, match=message):
        change_run(begun, {key: value})
    assert LiveLayout(root=begun).setup.read_bytes() == before


def test_an_edited_recipe_is_taken_over_where_it_may_be(begun: Path) -> None:
    layout, told = LiveLayout(root=begun), list[str]()
    edit(layout.recipe, "checkpoints", "every", 1)
    assert change_run(begun, {}, told.append).recipe.checkpoints.every == 1
    assert told == ["checkpoints.every was 2 and is now 1 (edited in recipe.yaml)"]


def test_an_edited_recipe_is_refused_where_it_would_misstate_what_was_trained(begun: Path) -> None:
    layout = LiveLayout(root=begun)
    edit(layout.recipe, "batch", "group_size", 4)
    with pytest.raises(ConfigError, match=r"recipe.yaml was edited: batch.group_size is 3 in the run"):
        change_run(begun, {})


def test_an_edited_set_up_is_refused_by_key_and_value(begun: Path) -> None:
    layout = LiveLayout(root=begun)
    setup = read_setup(layout.setup)
    write_setup(replace(setup, recipe=replace(setup.recipe, seed=9)), layout.setup)
    with pytest.raises(ConfigError, match=r"setup.json was edited: seed is 0 in the run .* cannot become 9"):
        change_run(begun, {})


def test_the_number_of_instances_may_change(begun: Path) -> None:
    assert change_run(begun, {"devices.instances": 3}).devices.instances == 3
    assert read_setup(LiveLayout(root=begun).setup).devices.instances == 3


def test_a_rate_that_falls_until_the_end_falls_until_the_new_end(make_setup: MakeSetup) -> None:
    falling = ScheduleConfig(kind="linear", total_updates=3)
    root = begin(make_setup(optimizer=OptimizerConfig(learning_rate_schedule=falling)))
    schedule = change_run(root, {"steps": 6}).recipe.optimizer.learning_rate_schedule
    assert schedule.total_updates == 6
    assert change_run(root, {}).recipe.optimizer.learning_rate_schedule == schedule


def test_a_run_that_holds_rows_out_may_be_evaluated_from_now_on(make_setup: MakeSetup) -> None:
    root = begin(make_setup())
    assert change_run(root, {"evaluation.every": 2}).recipe.evaluation == Evaluation(every=2)
