"""A teacher's turns are played in the real environment, and shown with all that came before each."""

import re
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from dora_rl.cli import agent_starter
from dora_rl.core.errors import ConfigError
from dora_rl.core.recipe import Recipe
from dora_rl.core.recipe.data import DataConfig, SourceConfig
from dora_rl.core.recipe.resolution import resolve_recipe
from dora_rl.envs.data.rows import Row
from dora_rl.envs.data.sources import load_data
from dora_rl.envs.tasks import load_task
from dora_rl.envs.tasks.tools import TOOLS
from dora_rl.model.tiny import save_tiny
from dora_rl.model.tokenizer import load_tokenizer
from dora_rl.prepare.demonstrations import demonstrated_episodes
from dora_rl.trainer.supervised import Shown


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("model")
    save_tiny(directory)
    return directory


def played(rows: list[Row], model: Path) -> list[Shown]:
    task = load_task("tools", seed=0, options={})
    recipe = Recipe(episode=task.episode, data=DataConfig(train=SourceConfig(name="tools")))
    return demonstrated_episodes(rows, recipe, model, {})


def rows(**options: Any) -> list[Row]:
    return load_task("tools", seed=0, options=options).train


def test_an_episode_is_shown_with_what_the_tools_answered_and_the_turns_are_learned(model: Path) -> None:
    row = next(row for row in rows(sloppiness=0.0) if len(row.columns["demonstration"]) == 3)
    (shown,) = played([row], model)
    tokenizer = load_tokenizer(model)
    assert tokenizer.decode(shown.prompt).endswith(f"<|user|>{row.prompt}<|end|><|assistant|>")
    stretches = [
        (is_answer, tokenizer.decode([token for _, token in stretch]))
        for is_answer, stretch in groupby(
            zip(shown.is_answer, shown.response, strict=True), lambda pair: pair[0]
        )
    ]
    answers = [text for is_answer, text in stretches if is_answer]
    assert answers == [f"{text}<|end|>" for text in row.columns["demonstration"]]
    between = [text for is_answer, text in stretches if not is_answer]
    assert len(between) == 2
    first, sign, second, *left = re.split(r"([-+*])", str(row.prompt))
    value = TOOLS[sign](int(first), int(second))
    assert between[0] == f"<|tool|>{value}{''.join(left)}<|end|><|assistant|>", "what is left to be done"
    assert between[1] == f"<|tool|>{row.columns['solution']}<|end|><|assistant|>"
    assert row.columns["solution"] == row.columns["demonstration"][-1], "who makes no slip is right"


def test_many_rows_are_played_side_by_side_and_none_is_left_out(model: Path) -> None:
    some = rows(rows=300, sloppiness=0.5)
    shown = played(some, model)
    assert len(shown) == len(some)
    wrong = [row for row in some if row.columns["demonstration"][-1] != row.columns["solution"]]
    assert 0.1 < len(wrong) / len(some) < 0.9


def test_a_row_without_turns_to_show_is_named(model: Path) -> None:
    row = replace(rows()[0], columns={"solution": "3", "demonstration": "3"})
    with pytest.raises(ConfigError, match="row 0 has no list of texts under 'demonstration'"):
        played([row], model)


def test_the_starter_of_an_agent_is_played_by_its_teacher_and_keeps_rows_back(
    model: Path, tmp_path: Path
) -> None:
    for name, make in agent_starter.FILES.items():
        (tmp_path / name).write_text(make())
    recipe = resolve_recipe(str(tmp_path / "recipe.yaml"))
    assert recipe.data is not None
    data = load_data(recipe.data)
    shown = demonstrated_episodes(data.train[:50], recipe, model, {})
    said = [load_tokenizer(model).decode(each.response) for each in shown]
    assert not any("error" in episode for episode in said)
    whole = [row for row in data.train[:50] if row.columns["demonstration"][-1] == row.columns["solution"]]
    assert 0 < sum(".<|end|><|assistant|>" in episode for episode in said) == len(whole) < 50
    starts = [{str(row.columns["links"])[:11] for row in rows} for rows in (data.train, data.held_out)]
    assert not starts[0] & starts[1]
    right = [row.columns["demonstration"][-1] == row.columns["solution"] for row in data.train]
    assert 0.3 < sum(right) / len(right) < 0.8, "the teacher leaves something to learn"
