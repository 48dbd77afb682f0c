"""A recipe says only what differs, and what it resolves to says everything."""

from functools import partial
from pathlib import Path

import pytest
import yaml

from dora_rl.core.errors import ConfigError
from dora_rl.core.recipe import Recipe
from dora_rl.core.recipe.algorithm import AlgorithmConfig, CustomAdvantageConfig
from dora_rl.core.recipe.episodes import EpisodeSettings
from dora_rl.core.recipe.loss_configs import CispoConfig, CustomLossConfig, PpoConfig
from dora_rl.core.recipe.presets import PRESETS
from dora_rl.core.recipe.resolution import resolve_recipe, shipped_recipes, summary_of
from dora_rl.core.struct_loader import build, override, to_dict, to_yaml


def resolved(directory: Path, text: str, *assignments: str) -> Recipe:
    path = directory / "recipe.yaml"
    path.write_text(text)
    return resolve_recipe(str(path), assignments)


@pytest.mark.parametrize("name", PRESETS)
def test_an_algorithm_is_named_by_its_preset(tmp_path: Path, name: str) -> None:
    assert resolved(tmp_path, f"algorithm: {name}").algorithm == PRESETS[name]
    assert resolved(tmp_path, "", f"algorithm={name}").algorithm == PRESETS[name]
    assert resolved(tmp_path, "algorithm: grpo", f"algorithm.preset={name}").algorithm == PRESETS[name]


def test_what_differs_from_a_preset_is_laid_over_it(tmp_path: Path) -> None:
    recipe = resolved(tmp_path, "algorithm: {preset: dapo, loss: {clip_low: 0.1}}", "clip_high=0.5")
    assert recipe.algorithm.loss == PpoConfig(clip_low=0.1, clip_high=0.5)
    assert recipe.algorithm.overlong == PRESETS["dapo"].overlong


def test_an_override_adds_to_an_algorithm_that_is_only_named(tmp_path: Path) -> None:
    algorithm = resolved(tmp_path, "algorithm: dapo", "loss.kind=cispo", "weight_high=3").algorithm
    assert isinstance(algorithm, AlgorithmConfig)
    assert algorithm.loss == CispoConfig(weight_high=3)
    assert algorithm.overlong == PRESETS["dapo"].overlong


def test_a_loss_and_an_advantage_of_ones_own_are_named_by_their_place(tmp_path: Path) -> None:
    (tmp_path / "mine.py").touch()
    text = "algorithm: {preset: dapo, loss: mine.py:my_loss, advantage: {kind: custom, function: mine.py:a}}"
    algorithm = resolved(tmp_path, text, "loss.options={beta: 2}").algorithm
    assert algorithm.loss == CustomLossConfig(function=f"{tmp_path}/mine.py:my_loss", options={"beta": 2})
    assert algorithm.advantage == CustomAdvantageConfig(function=f"{tmp_path}/mine.py:a")
    assert algorithm.overlong == PRESETS["dapo"].overlong


def test_a_loss_may_be_named_by_its_kind_alone(tmp_path: Path) -> None:
    assert resolved(tmp_path, "algorithm: {loss: cispo}").algorithm.loss == CispoConfig()
    assert resolved(tmp_path, "algorithm: dapo", "algorithm.loss=cispo").algorithm.loss == CispoConfig()
    chosen = resolved(tmp_path, "algorithm: dapo", "loss=object:mine").algorithm.loss
    assert chosen == CustomLossConfig(function="object:mine")


def test_a_misspelt_preset_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="unknown algorithm 'gropo'") as error:
        resolved(tmp_path, "algorithm: gropo")
    assert error.value.hint == "did you mean 'grpo'?"


def test_a_falling_rate_ends_with_the_run_unless_it_says_when(tmp_path: Path) -> None:
    text = "steps: 30\nbatch: {updates: 2}\noptimizer: {learning_rate_schedule: {kind: cosine%s}}"
    assert resolved(tmp_path, text % "").optimizer.learning_rate_schedule.total_updates == 60
    assert resolved(tmp_path, text % ", total_updates: 7").optimizer.learning_rate_schedule.total_updates == 7
    assert resolved(
        tmp_path, "", "learning_rate_schedule.kind=linear", "steps=5"
    ).optimizer.learning_rate_schedule


@pytest.mark.parametrize("text", ["rewards: [judge.py:length, {function: exact_match, weight: 2}]", ""])
def test_a_reward_may_be_the_name_of_its_function(tmp_path: Path, text: str) -> None:
    (tmp_path / "judge.py").touch()
    recipe = resolved(
        tmp_path, text, *(() if text else ("rewards=[judge.py:length, {function: exact_match, weight: 2}]",))
    )
    assert [(reward.label, reward.weight) for reward in recipe.rewards] == [
        ("length", 1.0),
        ("exact_match", 2.0),
    ]
    assert [reward.label for reward in resolved(tmp_path, "rewards: judge.py:length").rewards] == ["length"]


def test_a_group_of_one_keeps_one_member_unless_the_user_wants_more(tmp_path: Path) -> None:
    assert resolved(tmp_path, "", "group_size=1").control.min_members == 1
    assert resolved(tmp_path, "batch: {group_size: 1}\ncontrol: {refill: false}").control.min_members == 1
    assert resolved(tmp_path, "", "group_size=2").control.min_members == 2
    with pytest.raises(ConfigError, match="min_members = 3 is above"):
        resolved(tmp_path, "", "group_size=1", "min_members=3")


def test_the_resolved_recipe_reads_back_as_itself(tmp_path: Path) -> None:
    recipe = resolved(tmp_path, "algorithm: dapo\ndata: {train: {name: count}}\ntrainer: {lora: {rank: 4}}")
    again = tmp_path / "again.yaml"
    again.write_text(to_yaml(recipe))
    assert resolve_recipe(str(again)) == recipe
    assert build(Recipe, to_dict(recipe), "dict") == recipe


def test_paths_are_taken_from_the_recipes_directory_and_written_out(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").touch()
    (tmp_path / "judge.py").touch()
    (tmp_path / "weights").mkdir()
    recipe = resolved(
        tmp_path,
        "model: weights\n"
        "data: {train: {name: rows.jsonl}, held_out: {name: gsm8k, options: {path: rows.jsonl}}}\n"
        "rewards: [{function: judge.py:good}, {function: exact_match}]",
    )
    assert recipe.data is not None
    assert recipe.data.held_out is not None
    assert recipe.model == str(tmp_path / "weights")
    assert recipe.data.train.name == str(tmp_path / "rows.jsonl")
    assert recipe.data.held_out.options == {"path": str(tmp_path / "rows.jsonl")}
    assert [reward.function for reward in recipe.rewards] == [f"{tmp_path / 'judge.py'}:good", "exact_match"]
    assert [reward.label for reward in recipe.rewards] == ["good", "exact_match"]


def test_a_built_in_name_is_no_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("tiny", "count"):
        (tmp_path / name).mkdir()
    recipe = resolved(tmp_path, "model: tiny\ndata: {train: {name: count}}")
    assert recipe.data is not None
    assert (recipe.model, recipe.data.train.name) == ("tiny", "count")


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("num_generations: 8", "unknown key 'num_generations'", "is 'batch.group_size' here"),
        ("optimizer: {learning_rat: 1}", "unknown key 'optimizer.learning_rat'", "learning_rate"),
        ("data: {train: {nam: count}}", "unknown key 'data.train.nam'", "data.train.name"),
        ("data: {}", "'data.train' is missing", "give it a value"),
        ("rewards: [{functon: f}]", r"unknown key 'rewards\[0\].functon'", "function"),
        ("trainer: {serving_dtype: fp8}", "'trainer.serving_dtype' cannot be 'fp8'", "bfloat16"),
        ("sampling: {temperature: -1}", "temperature -1", None),
        ("run: {trackers: [wandbb]}", "trackers", "wandb"),
    ],
)
def test_a_mistake_is_named_with_its_place(tmp_path: Path, text: str, message: str, hint: str | None) -> None:
    with pytest.raises(ConfigError, match=message) as error:
        resolved(tmp_path, text)
    assert hint is None or hint in (error.value.hint or "")


@pytest.mark.parametrize(
    ("short", "full"),
    [
        ("rows", "task.rows"),
        ("schedule", "control.schedule"),
        ("learning_rate", "optimizer.learning_rate"),
        ("temperature", "sampling.temperature"),
        ("max_new_tokens", "response.max_new_tokens"),
        ("updates", "batch.updates"),
        ("slots", "cluster.slots"),
        ("max_versions", "cluster.max_versions"),
        ("lora.rank", "trainer.lora.rank"),
        ("clip_high", "algorithm.loss.clip_high"),
        ("instances", "devices.instances"),
    ],
)
def test_what_is_set_most_often_has_a_short_name(short: str, full: str) -> None:
    def assigned(name: str) -> object:
        return override({}, [f"{name}=1"], Recipe)

    assert assigned(short) == assigned(full)


@pytest.mark.parametrize("name", shipped_recipes())
def test_a_shipped_recipe_says_what_it_is_and_how_to_run_it(name: str) -> None:
    path = shipped_recipes()[name]
    assert summary_of(path)
    assert f"dora train {name}" in path.read_text()
    tree = yaml.safe_load(path.read_text())
    assert {"model", "data", "steps", "batch"} <= tree.keys()
    assert resolve_recipe(name).data is not None


def test_a_name_or_a_list_may_stand_for_rows(tmp_path: Path) -> None:
    assert resolve_recipe(None, ["data.train=rows.jsonl"]).data == resolve_recipe({"data": "rows.jsonl"}).data
    both = ["data.train=rows.jsonl", "data.train.split=test", "data.held_out=other.jsonl"]
    found = resolve_recipe(None, both).data
    assert found is not None
    assert (found.train.name, found.train.split) == ("rows.jsonl", "test")
    assert found.held_out is not None
    path = tmp_path / "recipe.yaml"
    path.write_text("data: {train: [rows.jsonl, {name: dir/more.jsonl, weight: 2}]}")
    with pytest.raises(ConfigError, match=r"some tables of data.train have a weight, others none"):
        resolve_recipe(str(path))
    path.write_text("data: {train: [{name: rows.jsonl, weight: 1}, {name: dir/more.jsonl, weight: 2}]}")
    (tmp_path / "dir").mkdir()
    (tmp_path / "dir/more.jsonl").touch()
    found = resolve_recipe(str(path)).data
    assert found is not None
    first, second = found.train.parts
    assert (first.name, first.label, second.label) == ("rows.jsonl", "rows", "more")
    assert second.name == str(tmp_path / "dir/more.jsonl")


def test_files_that_an_episode_names_are_those_beside_its_recipe(tmp_path: Path) -> None:
    for name in ("play.py", "server.py"):
        (tmp_path / name).write_text("")
    options = "{environment: play.py:Game, server: [python, server.py], n: 3}"
    episode = resolved(tmp_path, f"episode: {{function: play.py:game, options: {options}}}").episode
    assert episode is not None
    assert episode.function == f"{tmp_path}/play.py:game"
    assert episode.options == {
        "environment": f"{tmp_path}/play.py:Game",
        "server": ["python", f"{tmp_path}/server.py"],
        "n": 3,
    }


def test_as_many_episodes_are_open_as_their_processes_hold() -> None:
    made = partial(EpisodeSettings, function="a:b", processes=4)
    assert made().most_open is None
    assert made(max_open=9).most_open == 9
    assert made(per_process=2).most_open == 8
    assert made(per_process=2, max_open=3).most_open == 3
