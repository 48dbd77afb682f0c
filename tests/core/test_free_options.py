"""Secrets in a recipe: taken from the environment by who needs them, and warned of where they are not."""

from typing import Any

import pytest

from dora_rl.core.environment_values import hidden, with_environment
from dora_rl.core.errors import UserError
from dora_rl.core.recipe import Recipe
from dora_rl.core.recipe.data import RewardConfig
from dora_rl.core.recipe.free_options import check_environment, secret_warnings
from dora_rl.core.recipe.resolution import resolve_recipe
from dora_rl.core.struct_loader import to_yaml

KEY = "sk-proj-4f9Tq2ZbXw81LmVe"


def recipe(**options: Any) -> Recipe:
    return Recipe(rewards=(RewardConfig(function="judge.py:ask", options=options),))


def test_a_reference_is_looked_up_where_it_is_used_and_stays_one_in_what_is_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("JUDGE_KEY", KEY)
    options = {"api_key": "env:JUDGE_KEY", "headers": [{"x": "env:JUDGE_KEY"}], "n": 3, "text": "an env:X"}
    asked = recipe(**options)
    check_environment(asked)
    found = with_environment(asked.rewards[0].options, "the reward")
    assert found == {"api_key": KEY, "headers": [{"x": KEY}], "n": 3, "text": "an env:X"}
    assert KEY not in to_yaml(asked)
    assert hidden(f"401: {KEY} is wrong", options) == "401: env:JUDGE_KEY is wrong"
    assert list(secret_warnings(asked)) == []


def test_a_reference_can_be_written_on_the_command_line() -> None:
    found = resolve_recipe(None, ["rewards=[{function: 'judge.py:ask', options: {api_key: env:JUDGE_KEY}}]"])
    assert found.rewards[0].options == {"api_key": "env:JUDGE_KEY"}


def test_a_variable_that_is_not_set_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JUDGE_KEY", raising=False)
    with pytest.raises(UserError) as caught:
        check_environment(recipe(api_key="env:JUDGE_KEY"))
    assert caught.value.message == (
        "rewards[0].options takes a value from the environment variable JUDGE_KEY, which is not set"
    )
    assert caught.value.hint == "set it where the run is started: export JUDGE_KEY=..."


@pytest.mark.parametrize(
    "options",
    [
        {"api_key": "letmein-please"},
        {"password": "hunter"},
        {"headers": {"Authorization": f"Bearer {KEY}"}},
        {"client": KEY},
        {"key_env": KEY},
        {"auth": ["hf_aBcDeFgHiJkLmNoPqRsT"]},
        {"accessToken": "a1b2c3d4e5"},
        {"salt": "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b"},
    ],
)
def test_what_looks_like_a_secret_is_warned_of_with_the_way_out(options: dict[str, Any]) -> None:
    (warning,) = secret_warnings(recipe(**options))
    assert warning.startswith(f"rewards[0].options.{next(iter(options))}")
    assert "looks like a secret" in warning
    assert ", and write env:" in warning
    assert KEY not in warning


@pytest.mark.parametrize(
    "options",
    [
        {"max_tokens": 512, "key_env": "JUDGE_KEY", "model": "Qwen/Qwen2.5-0.5B-Instruct"},
        {"key": "answer", "sort_key": "difficulty", "stop_token": "<|im_end|>", "tokenizer": "a-tokenizer-1"},
        {
            "revision": "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b",
            "path": "/data/2026-11-16/rows.jsonl",
        },
        {"prompt": "Grade the answer from 0 to 5, and end with `Score: N`.", "secret": "", "password": None},
        {"base_url": "http://localhost:8000/v1", "name": "a-rather-long-name-of-something-without-figures"},
    ],
)
def test_what_is_no_secret_is_not_warned_of(options: dict[str, Any]) -> None:
    assert list(secret_warnings(recipe(**options))) == []


def test_a_variable_as_a_shell_writes_it_is_pointed_out() -> None:
    (warning,) = secret_warnings(recipe(api_key="${JUDGE_KEY}"))
    assert warning == (
        "rewards[0].options.api_key is the text ${JUDGE_KEY}: env:JUDGE_KEY takes the value of the variable"
    )
