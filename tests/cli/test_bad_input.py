"""Bad input gets one clear sentence and a hint, exit code 2 and no traceback."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Dora = Callable[..., Any]


def sets(*assignments: str) -> list[str]:
    return [f"--set={assignment}" for assignment in assignments]


MANY = ("gpus=64", "rollout_gpus=8", "tensor_parallel=1")

BAD = {
    "unknown key": (sets("grops=3"), "unknown key 'grops'"),
    "key of another section": (sets("cluster.groups=3"), "unknown key 'cluster.groups'"),
    "no assignment": (sets("groups"), "assigns nothing"),
    "negative size": (sets("batch.groups=-1"), "'batch.groups' cannot be -1"),
    "no steps": (["--steps", "0"], "'steps' cannot be 0"),
    "not a number": (sets("max_staleness=two"), "'control.max_staleness' cannot be 'two'"),
    "unknown preset": (["--preset", "papper-64"], "no preset named 'papper-64'"),
    "unknown schedule": (["--schedule", "dorra"], "'control.schedule' cannot be 'dorra'"),
    "unknown GPU": (sets("gpu=H999"), "no GPU named 'H999'"),
    "unknown model": (sets("model=GPT-9"), "no model named 'GPT-9'"),
    "missing recipe": (["no-such.yaml"], "cannot read no-such.yaml"),
    "missing lengths": (sets("lengths.kind=empirical", "lengths.path=none.json"), "cannot read none.json"),
    "lengths without path": (sets("lengths.kind=empirical"), "'task.lengths.path' is missing"),
    "empty range": (sets("lengths.max_tokens=2"), "min_tokens = 16 is above"),
    "R below B": (sets("active_groups=2"), "active_groups = 2 is below batch.groups = 32"),
    "fewer GPUs than one instance": (
        sets("gpus=2", "tensor_parallel=4"),
        "gpus = 2 is less than one instance",
    ),
    "more GPUs than there are": (sets("rollout_gpus=99"), "is more than cluster.gpus = 8"),
    "nobody trains": (sets("rollout_gpus=8"), "none is left to train"),
    "half an instance": (sets("elastic_gpus=6", "tensor_parallel=4"), "no multiple"),
    "weights that do not fit": (sets("model=Qwen2.5-72B", *MANY), "does not fit on an instance of 1 x H800"),
    "a trainer that does not fit": (
        sets("model=Qwen2.5-32B", "rollout_gpus=4", "tensor_parallel=4"),
        "training Qwen2.5-32B needs 524 GB",
    ),
    "nothing fits": (sets("model=Qwen3-235B-A22B"), "hold no instance of Qwen3-235B-A22B"),
    "more versions than fit": (
        sets("model=Qwen2.5-32B", "placement=shared", *MANY),
        "keeps up to 4 versions on each instance, but 1",
    ),
    "more versions than allowed": (
        sets("max_versions=2", "placement=shared", *MANY),
        "keeps up to 4 versions on each instance, but 2",
    ),
    "nowhere to write": (["--preset", "laptop-1gpu", "--log", "/proc/none/log"], "cannot write"),
    "no such log": (["replay", "none.jsonl"], "cannot read none.jsonl"),
    "a study of no preset": (["study", "staleness", "--preset", "none"], "no preset named 'none'"),
}


def check(called: Any, message: str) -> None:
    error, *hint = called.err.strip().splitlines()
    assert called.exit_code == 2, called.err
    assert called.out == ""
    assert error.startswith("error: ")
    assert message in error
    assert [line.partition(":")[0] for line in hint] == ["hint"]


@pytest.mark.parametrize(("arguments", "message"), BAD.values(), ids=BAD)
def test_simulate_says_what_is_wrong_and_how_to_go_on(dora: Dora, arguments: list[str], message: str) -> None:
    check(dora("simulate", *arguments), message)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[1, 2", "is no JSON"),
        ('{"lengths": [1]}', "is no list of positive integers"),
        ("[]", "is no list of positive integers"),
        ("[5, -1]", "is no list of positive integers"),
        ('["long"]', "is no list of positive integers"),
    ],
)
@pytest.mark.parametrize("command", ["simulate", "plan"])
def test_a_bad_file_of_lengths_is_named(
    dora: Dora, tmp_path: Path, command: str, text: str, message: str
) -> None:
    path = tmp_path / "lengths.json"
    path.write_text(text)
    asked = sets("lengths.kind=empirical", f"lengths.path={path}")
    check(dora(command, *(asked if command == "simulate" else ["--lengths", path])), message)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("batch: {grops: 3}", "unknown key 'batch.grops'"),
        ("batch: 5", "'batch' cannot be 5"),
        ("- a", "is not a"),
    ],
)
def test_a_bad_recipe_is_named(dora: Dora, tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "recipe.yaml").write_text(text)
    called = dora("simulate", tmp_path / "recipe.yaml")
    check(called, message)
    assert "recipe.yaml" in called.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--lengths", "long"], "is neither a file nor MEDIAN:SIGMA:MAX"),
        (["--gpus", "0"], "'cluster.gpus' cannot be 0"),
        (["--model", "GPT-9"], "no model named"),
        (["--gpus", "2", "--model", "Qwen2.5-72B"], "hold no instance of Qwen2.5-72B"),
        (["--gpus", "1", "--model", "Qwen2.5-7B"], "beside a trainer that needs 2"),
        (["--max-staleness", "0"], "leaves nothing to plan"),
        (sets("placement=shared", "max_versions=1"), "hold no instance"),
    ],
)
def test_plan_says_what_is_wrong_and_how_to_go_on(dora: Dora, arguments: list[str], message: str) -> None:
    check(dora("plan", *arguments), message)


@pytest.mark.parametrize("arguments", [["study"], ["study", "none"], ["a.yaml", "b.yaml"], ["--none"]])
def test_a_usage_error_exits_with_two(dora: Dora, arguments: list[str]) -> None:
    called = dora("simulate", *arguments)
    assert called.exit_code == 2
    assert "Traceback" not in called.err


def test_a_section_that_is_none_is_answered_with_each_section_once(dora: Dora) -> None:
    called = dora("keys", "frobnication")
    check(called, "a recipe has no section 'frobnication'")
    assert called.err.count("algorithm.loss,") == 1


def test_an_argument_of_trl_is_answered_with_the_key(dora: Dora) -> None:
    called = dora("simulate", "--set=num_generations=4")
    check(called, "unknown key 'num_generations'")
    assert "what TRL calls 'num_generations' is 'batch.group_size' here" in called.err


@pytest.mark.parametrize(
    ("arguments", "message", "hint"),
    [
        (
            ["train", "demo", "--learning_rate", "1e-5"],
            "no option --learning_rate",
            "--set learning_rate=VALUE",
        ),
        (["train", "demo", "--max-steps=5"], "no option --max-steps", "--set max_steps=VALUE"),
        (["train", "demo", "--dryrun"], "no option --dryrun", "did you mean --dry-run?"),
        (["eval", "tiny", "--temperature", "1"], "no option --temperature", "--set temperature=VALUE"),
    ],
)
def test_a_key_that_is_given_as_an_option_is_answered_with_set(
    dora: Dora, arguments: list[str], message: str, hint: str
) -> None:
    called = dora(*arguments)
    check(called, message)
    assert hint in called.err


def test_a_directory_is_no_recipe_and_the_file_in_it_is_named(dora: Dora, tmp_path: Path) -> None:
    check(dora("train", tmp_path), f"{tmp_path} is a directory, not a recipe")
    (tmp_path / "mine.yaml").write_text("steps: 3")
    called = dora("train", tmp_path)
    check(called, "is a directory, not a recipe")
    assert f"give the file: {tmp_path / 'mine.yaml'}" in called.err


def test_an_empty_prompt_is_refused_before_anything_starts(dora: Dora, tmp_path: Path) -> None:
    check(dora("generate", "tiny", " "), "the prompt is empty")
    (tmp_path / "prompt.txt").write_bytes(b"\xff")
    check(dora("generate", "tiny", "--file", tmp_path / "prompt.txt"), "is not text in UTF-8")
