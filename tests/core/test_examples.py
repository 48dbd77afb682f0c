"""What `examples/` holds is what it says: the recipe is one, and the reward judges its rows."""

import ast
import subprocess
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from dora_rl.core.named import load_named
from dora_rl.core.recipe.resolution import resolve_recipe
from dora_rl.core.recipe.unused_keys import training_remarks
from dora_rl.core.yaml_text import load_yaml
from dora_rl.envs.data.sources import load_data
from dora_rl.envs.episodes.episode_function import load_episode

CLUSTER = Path(__file__).parents[2] / "examples/cluster"
EXAMPLE = Path(__file__).parents[2] / "examples/first_day"
SUPPORT = Path(__file__).parents[2] / "examples/support"
AGENTS = Path(__file__).parents[2] / "examples/agents"


def test_the_first_days_recipe_has_rows_that_its_reward_judges() -> None:
    recipe = resolve_recipe(str(EXAMPLE / "own.yaml"), [])
    assert recipe.data is not None
    rows = load_data(recipe.data).train
    (reward,) = recipe.rewards
    judge = load_named(reward.function)
    assert len({row.prompt for row in rows}) == len(rows) >= recipe.batch.groups
    assert judge(completions=["abe", "", "aei"]) == [pytest.approx(2 / 3), 0.0, 1.0]


def test_the_recipe_of_a_cluster_names_one_and_its_scripts_are_scripts() -> None:
    recipe = resolve_recipe(str(CLUSTER / "recipe.yaml"), [])
    assert recipe.cluster.ray == "auto"
    assert not list(training_remarks(recipe))
    for script in CLUSTER.glob("*.sh"):
        assert subprocess.run(["bash", "-n", str(script)], check=False).returncode == 0
        assert "dora train" in script.read_text()
    job = load_yaml(CLUSTER / "rayjob.yaml")
    assert job["kind"] == "RayJob"
    assert "--set cluster.ray=auto" in job["spec"]["entrypoint"]


def test_trl_is_asked_for_what_the_recipe_says() -> None:
    recipe = resolve_recipe(str(EXAMPLE / "own.yaml"), [])
    asked = _arguments(EXAMPLE / "with_trl.py", "GRPOConfig")
    assert asked["max_steps"] == recipe.steps
    assert asked["per_device_train_batch_size"] == recipe.batch.trajectories
    assert asked["num_generations"] == recipe.batch.group_size
    assert asked["max_completion_length"] == recipe.response.max_new_tokens
    assert asked["learning_rate"] == recipe.optimizer.learning_rate
    assert asked["lr_scheduler_type"] == recipe.optimizer.learning_rate_schedule.kind


def test_the_recipe_of_agents_names_an_agent_and_what_judges_it() -> None:
    pytest.importorskip("aiohttp")
    recipe = resolve_recipe(str(AGENTS / "recipe.yaml"), [])
    assert recipe.episode is not None
    load_episode(recipe.episode.function, recipe.episode.options)
    assert recipe.data is not None
    row = load_data(recipe.data).train[0]
    solved = load_named(recipe.episode.options["reward"])
    assert [solved(row=row, result=result) for result in (row.columns["solution"], "", None)] == [1, 0, 0]


def test_the_recipe_of_a_help_desk_names_its_customer_and_rows_with_a_goal() -> None:
    recipe = resolve_recipe(str(SUPPORT / "recipe.yaml"), [])
    assert recipe.episode is not None
    load_episode(recipe.episode.function, recipe.episode.options)
    assert set(recipe.roles) == {"user"}
    assert recipe.data is not None
    rows = load_data(recipe.data, needs_prompt=False).train
    unchanged = sum(row.columns["goal"] == row.columns["orders"] for row in rows) / len(rows)
    assert 0.4 < unchanged < 0.9, "some wishes must be refused, some fulfilled"


def _arguments(program: Path, called: str) -> dict[str, Any]:
    """The keyword arguments of a call in a program that need not be importable here."""
    calls = [each for each in ast.walk(ast.parse(program.read_text())) if isinstance(each, ast.Call)]
    (call,) = [each for each in calls if isinstance(each.func, ast.Name) and each.func.id == called]
    return {each.arg or "": ast.literal_eval(each.value) for each in call.keywords}


def test_the_environments_of_the_examples_are_played() -> None:
    recipe = resolve_recipe(str(EXAMPLE.parent / "environments/gym.yaml"), [])
    assert recipe.episode is not None
    assert load_episode(recipe.episode.function, recipe.episode.options).is_async
    corridor = load_named(str(recipe.episode.options["make"]))()
    shown, _ = corridor.reset(seed=1)
    wanted = int("right" in shown.partition(".")[0])
    corridor.step(wanted)
    assert corridor.step(wanted)[1:3] == (1.0, True)

    game = load_named(f"{EXAMPLE.parent}/environments/trl_game.py:Hotter")()
    game.reset(seed=4)
    assert [game.guess(number) for number in (1, 9, 6, 5)] == ["hotter", "colder", "hotter", "found"]
    assert game.get_reward() == 1.0


def test_the_customer_of_a_help_desk_may_be_the_model_that_the_run_began_with() -> None:
    theirs, own = (resolve_recipe(str(SUPPORT / name), []) for name in ("recipe.yaml", "own_user.yaml"))
    assert (theirs.frozen_versions, own.frozen_versions) == ((), (0,))
    assert replace(own, roles=theirs.roles) == theirs, "nothing else differs"
    assert not list(training_remarks(own))
