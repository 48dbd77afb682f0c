"""What a recipe leaves out is filled in, and what could not work is refused before anything starts."""

from typing import Any

import pytest

from dora_rl.core.errors import ConfigError
from dora_rl.core.recipe import Evaluation, Recipe
from dora_rl.core.recipe.episodes import EpisodeSettings
from dora_rl.core.recipe.resolution import resolve_recipe
from dora_rl.core.struct_loader import build, to_dict
from dora_rl.envs.data.rows import Row
from dora_rl.envs.tasks import load_task
from dora_rl.envs.tokenized_prompts import TokenizedPrompt
from dora_rl.prepare.completion import completed, judged_recipe
from dora_rl.prepare.episode_checks import check_context
from dora_rl.run.prompt_table import PromptTable


def made(num_held_out: int = 2, **sections: Any) -> Recipe:
    tree = {
        "steps": 7,
        "data": {"train": {"name": "rows.jsonl"}},
        "rewards": [{"function": "mine.py:right"}],
        "response": {"max_new_tokens": 8},
        **sections,
    }
    rows = [
        TokenizedPrompt(row=Row(row=number, prompt="?", columns={}), token_ids=(1,))
        for number in range(4 + num_held_out)
    ]
    prompts = PromptTable(train=tuple(rows[:4]), held_out=tuple(rows[4:]), stop_tokens=(0,))
    return completed(build(Recipe, tree, "the recipe of a test"), None, prompts, max_positions=64)


def evaluation(num_held_out: int = 2, **sections: Any) -> Evaluation:
    return made(num_held_out, **sections).evaluation


def test_who_holds_rows_out_has_them_evaluated_before_and_after() -> None:
    held_out = {"train": {"name": "rows.jsonl"}, "held_out_share": 0.1}
    assert evaluation(data=held_out).every == 7
    assert evaluation(data=held_out, evaluation={"every": 0}).every == 0
    assert evaluation(data=held_out, evaluation={"every": 3}).every == 3
    assert evaluation().every == 0, "the rows are the task's, and nobody asked"


def test_groups_of_one_are_refused_where_their_members_are_compared() -> None:
    one = {"batch": {"groups": 4, "group_size": 1}, "control": {"min_members": 1}}
    with pytest.raises(ConfigError, match=r"batch\.group_size = 1 .* nothing learned"):
        made(**one)
    batch = {"advantage": {"kind": "outcome", "baseline": "batch", "scale": "batch"}}
    assert made(**one, algorithm=batch).batch.group_size == 1


def test_greedy_groups_are_refused_where_their_members_are_compared() -> None:
    with pytest.raises(ConfigError, match=r"sampling\.temperature = 0 .* nothing learned"):
        made(sampling={"temperature": 0})


def test_turns_that_only_the_simulator_can_imagine_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"task\.turns .* in one turn") as error:
        made(task={"turns": {"mean_turns": 3}})
    assert error.value.hint == "leave task.turns out to train: --set 'task.turns={}'"
    tried = resolve_recipe({"task": {"turns": {"mean_turns": 3}}}, ["task.turns={}"])
    made(task=to_dict(tried.task))


def test_a_constant_length_left_out_is_what_a_response_may_have() -> None:
    assert made(algorithm={"aggregation": {"over": "constant"}}).algorithm.aggregation.length == 8
    said = {"over": "constant", "length": 4}
    assert made(algorithm={"aggregation": said}).algorithm.aggregation.length == 4


def test_a_sample_passes_by_a_reward_that_there_is() -> None:
    named = {"every": 1, "pass_function": "rihgt"}
    with pytest.raises(ConfigError, match="'rihgt', and there is no such reward") as error:
        made(evaluation=named)
    assert error.value.hint == "did you mean 'right'?"


def test_a_tasks_episode_is_changed_by_what_the_recipe_says_of_it() -> None:
    task = load_task("tools", seed=0, options={"rows": 1, "held_out_rows": 1})
    assert task.episode is not None
    recipe = Recipe(episode=EpisodeSettings(processes=5, options={"a": 1}))
    found = judged_recipe(recipe, task, "tools").episode
    assert found is not None
    assert (found.function, found.max_turns) == (task.episode.function, task.episode.max_turns)
    assert (found.processes, found.options) == (5, {"a": 1})
    assert judged_recipe(Recipe(), task, "tools").episode == task.episode
    own = EpisodeSettings(function="mine.py:play")
    assert judged_recipe(Recipe(episode=own), task, "tools").episode == own
    with pytest.raises(ConfigError, match="no episode of their own"):
        judged_recipe(recipe, None, "rows.jsonl")


def test_contexts_that_the_model_does_not_take_are_refused() -> None:
    check_context(Recipe(episode=EpisodeSettings(max_context_tokens=64)), 64)
    with pytest.raises(ConfigError, match="max_context_tokens = 65, and the model takes 64") as error:
        check_context(Recipe(episode=EpisodeSettings(max_context_tokens=65)), 64)
    assert error.value.hint == "set episode.max_context_tokens=64"
