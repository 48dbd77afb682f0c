"""Every built-in task is seeded, keeps rows back, and its own solutions earn everything."""

import importlib.util
import json
import re
import string
import sys
import types
from pathlib import Path
from typing import Any

import pytest

from dora_rl.core.errors import UserError
from dora_rl.core.recipe.data import DataConfig, SourceConfig
from dora_rl.envs.data.rows import Row
from dora_rl.envs.data.sources import load_data
from dora_rl.envs.scoring.functions import check_columns, load_function
from dora_rl.envs.scoring.reward_messages import Item, Needs
from dora_rl.envs.scoring.reward_scorer import Scorer
from dora_rl.envs.tasks import TASKS, Task, load_task
from dora_rl.envs.tasks.count import SYMBOLS, count_reward
from dora_rl.envs.tasks.plain_values import packed, unpacked
from dora_rl.envs.tokenized_prompts import tokenize_rows
from dora_rl.model.characters import character_tokenizer

from .scored import asked

GSM8K = [
    {"question": f"Ann has {n} apples and gets 2.", "answer": f"{n}+2 = {n + 2}\n#### {n + 2:,}"}
    for n in range(990, 1010)
]


PLAYED = ("bfcl", "seeds", "textworld", "tools")
"""Tasks whose rows are episodes, which give their reward themselves."""


@pytest.fixture(params=[name for name in TASKS if name not in PLAYED])
def task(request: pytest.FixtureRequest, tmp_path: Path) -> Task:
    return made(request.param, tmp_path)


def made(family: str, tmp_path: Path, seed: int = 0, **options: Any) -> Task:
    if family == "gsm8k":
        path = tmp_path / "gsm8k.jsonl"
        path.write_text("\n".join(map(json.dumps, GSM8K)))
        return load_task("gsm8k", seed=seed, options={"path": str(path), "held_out_share": 0.2})
    if family == "reasoning_gym":
        pytest.importorskip("reasoning_gym")
        return load_task("reasoning_gym:chain_sum", seed=seed, options={"rows": 40, "held_out_rows": 10})
    return load_task(family, seed=seed, options={"rows": 60, "held_out_rows": 20, **options})


def rewards(task: Task, rows: list[Row], texts: list[str]) -> list[float | None]:
    scorer = Scorer([load_function(r) for r in task.rewards], time_limit_s=5, began=lambda *_: None)
    items = tuple(Item(row=row, text=text, token_ids=()) for row, text in zip(rows, texts, strict=True))
    result = scorer.call_plain(asked(0, *items)).result()
    assert not result.failures, result.failures[0].detail
    return list(result.scores[0].values)


def test_its_own_solutions_earn_everything(task: Task) -> None:
    for rows in (task.train, task.held_out):
        assert rewards(task, rows, [row.columns["solution"] for row in rows]) == [1.0] * len(rows)


def test_corrupted_solutions_earn_less(task: Task) -> None:
    rows = task.train
    written = string.digits + string.ascii_lowercase
    wrong = str.maketrans(written, written[1:] + written[0])
    shifted = [row.columns["solution"].translate(wrong) for row in rows]
    for reward in (rewards(task, rows, shifted), rewards(task, rows, [""] * len(rows))):
        assert all(value is not None and 0 <= value < 1 for value in reward)


def test_the_teacher_of_letters_begins_and_ends_right_and_is_seldom_right_in_all() -> None:
    rows = load_task("letters", seed=0, options={}).train
    pairs = [(row.columns["demonstration"], row.columns["solution"]) for row in rows]
    assert all(shown[0] == right[0] and shown[-1] == right[-1] for shown, right in pairs)
    assert 0.05 < sum(shown == right for shown, right in pairs) / len(pairs) < 0.3


def test_rows_are_a_function_of_the_seed(task: Task, tmp_path: Path) -> None:
    family = task.name.partition(":")[0]
    assert made(family, tmp_path) == task
    other = made(family, tmp_path, seed=1)
    assert (other.train, other.held_out) != (task.train, task.held_out)


def test_held_out_problems_are_not_trained_on(task: Task) -> None:
    assert task.held_out
    if task.name == "count":
        pytest.skip("too few problems to keep any unseen")
    trained = [row.prompt for row in task.train]
    assert not [row for row in task.held_out if row.prompt in trained]


def test_the_reward_finds_its_columns(task: Task) -> None:
    functions = [load_function(reward) for reward in task.rewards]
    check_columns([Needs(function=f.label, columns=f.required) for f in functions], task.train[0].columns)


def test_the_suggested_length_holds_every_solution(task: Task) -> None:
    assert all(len(row.columns["solution"]) < task.max_new_tokens for row in task.train + task.held_out)


@pytest.mark.parametrize("family", ["count", "arithmetic"])
def test_a_character_model_can_read_and_write_all_of_it(family: str, tmp_path: Path) -> None:
    tokenizer = character_tokenizer()
    task = made(family, tmp_path)
    prompts = tokenize_rows(task.train, tokenizer, DataConfig(train=SourceConfig(name=family)))
    assert tokenizer.unk_token_id not in [i for prompt in prompts.prompts for i in prompt.token_ids]
    ids = [tokenizer(row.columns["solution"]).input_ids for row in task.train]
    assert max(map(len, ids)) < task.max_new_tokens
    assert tokenizer.unk_token_id not in [i for row in ids for i in row]


def test_a_count_goes_down_to_zero_in_both_notations() -> None:
    for row in load_task("count", seed=5, options={}).train:
        numbers = [SYMBOLS.index(character) for character in str(row.prompt) + row.columns["solution"]]
        assert numbers == list(range(row.columns["n"], -1, -1))
    for row in load_task("count", seed=5, options={"notation": "decimal", "max_n": 300}).train:
        assert f"from {row.columns['n']} to 0" in row.prompt
        numbers = [int(word) for word in row.columns["solution"].split(" ")]
        assert numbers == list(range(row.columns["n"], -1, -1))


@pytest.mark.parametrize(
    ("given", "reward"),
    [("3210", 1.0), ("32109", 0.9), ("321", 0.675), ("3", 0.225), ("2210", 0.0), ("", 0.0)],
)
def test_counting_further_earns_more(given: str, reward: float) -> None:
    assert count_reward([given], ["3210"]) == [pytest.approx(reward)]


def test_the_lengths_of_count_have_a_long_tail() -> None:
    lengths = sorted(len(row.columns["solution"]) for row in load_task("count", seed=0, options={}).train)
    median, longest = lengths[len(lengths) // 2], lengths[-1]
    assert longest > 3 * median


def test_a_source_that_names_a_task_brings_its_own_held_out_rows_and_reward() -> None:
    train = SourceConfig(name="count", options={"rows": 30, "held_out_rows": 7})
    data = load_data(DataConfig(train=train))
    assert (len(data.train), len(data.held_out)) == (30, 7)
    assert data.task is not None
    assert data.task.rewards[0].label == "count_reward"
    by_share = load_data(DataConfig(train=train, held_out_share=0.5))
    assert (len(by_share.train), len(by_share.held_out)) == (15, 15)


@pytest.mark.parametrize(
    ("name", "options", "words", "hint"),
    [
        ("cuont", {}, "no task 'cuont'", "did you mean 'count'?"),
        ("count", {"medain": 3}, "no option 'medain'", "did you mean 'median'?"),
        ("gsm8k", {}, "needs the option 'path'", "options: {path: ...}"),
        ("count:5", {}, "no option 'name'", "it takes"),
        ("count", {"max_n": 62}, "too few for max_n = 62", "at most 61"),
        ("count", {"median": 50.0}, "cannot draw", "median <= max_n"),
        ("count", {"notation": "roman"}, "no notation 'roman'", "'characters' or 'decimal'"),
        ("arithmetic", {"signs": ["-"]}, "no sign '-'", "signs: +, *"),
    ],
)
def test_a_wrong_task_is_a_sentence(name: str, options: dict[str, Any], words: str, hint: str) -> None:
    with pytest.raises(UserError, match=words) as error:
        load_task(name, seed=0, options=options)
    assert error.value.hint is not None
    assert hint in error.value.hint


def test_gsm8k_is_read_from_a_data_set_and_its_test_split_held_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def load_dataset(name: str, subset: str | None, split: str) -> list[dict[str, str]]:
        asked.append((name, subset, split))
        return GSM8K[:15] if split == "train" else GSM8K[15:]

    monkeypatch.setitem(sys.modules, "datasets", types.SimpleNamespace(load_dataset=load_dataset))
    task = load_task("gsm8k", seed=0, options={"path": "openai/gsm8k"})
    assert (len(task.train), len(task.held_out)) == (15, 5)
    assert asked == [("openai/gsm8k", "main", "train"), ("openai/gsm8k", "main", "test")]
    asked.clear()
    shared = load_task("gsm8k", seed=0, options={"path": "hf:mine", "subset": None, "held_out_share": 0.2})
    assert (len(shared.train), len(shared.held_out)) == (12, 3)
    load_task("gsm8k", seed=0, options={"path": str(tmp_path), "held_out_share": 0.2})
    assert asked == [("mine", None, "train"), (str(tmp_path), None, "train")]


@pytest.mark.skipif(importlib.util.find_spec("datasets") is None, reason="needs datasets")
def test_gsm8k_is_read_from_a_directory_by_the_real_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_DATASETS_OFFLINE", "1")
    (tmp_path / "train.jsonl").write_text("\n".join(map(json.dumps, GSM8K[:15])))
    (tmp_path / "test.jsonl").write_text("\n".join(map(json.dumps, GSM8K[15:])))
    task = load_task("gsm8k", seed=0, options={"path": str(tmp_path)})
    assert (len(task.train), len(task.held_out)) == (15, 5)


@pytest.mark.parametrize(
    ("path", "words"), [("gsm8k", "neither a file nor a data set"), ("none.jsonl", "there is no file")]
)
def test_gsm8k_from_nowhere_is_an_error_with_a_way_out(path: str, words: str) -> None:
    with pytest.raises(UserError, match=words) as raised:
        load_task("gsm8k", seed=0, options={"path": path})
    assert raised.value.hint


def test_a_file_that_is_not_gsm8k_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "other.jsonl"
    path.write_text(json.dumps({"question": "x", "answer": "no mark"}))
    with pytest.raises(UserError, match="row 0 has no 'question' and 'answer'"):
        load_task("gsm8k", seed=0, options={"path": str(path)})


def test_packing_keeps_tuples_and_keys() -> None:
    value = {"a": (1, [2, (3,)]), 4: None, (5, "x"): {"dict": [1], "tuple": (True, 0.5)}}
    plain = packed(value)
    assert unpacked(json.loads(json.dumps(plain))) == value


@pytest.mark.parametrize("junk", ["", "<answer>", "((((", "<answer>1/0</answer>", "\x00", "1e999", "nan"])
@pytest.mark.parametrize("name", ["countdown", "rearc", "sudoku", "game_of_life", "prime_factorization"])
def test_reasoning_gym_scorers_take_junk_for_wrong(name: str, junk: str) -> None:
    pytest.importorskip("reasoning_gym")
    task = load_task(f"reasoning_gym:{name}", seed=0, options={"rows": 2, "held_out_rows": 1})
    assert rewards(task, task.train, [row.columns["solution"] for row in task.train]) == [1.0, 1.0]
    assert all(value is not None and value < 1 for value in rewards(task, task.train, [junk] * 2))


def test_a_lenient_reader_takes_the_last_number() -> None:
    pytest.importorskip("reasoning_gym")
    for lenient in (True, False):
        task = load_task("reasoning_gym:chain_sum", seed=0, options={"rows": 3, "lenient": lenient})
        texts = [f"I think it is {row.columns['entry']['dict'][1][1]}." for row in task.train]
        assert [value == 1.0 for value in rewards(task, task.train, texts)] == [lenient] * 3


@pytest.mark.parametrize("chat", [False, True])
def test_arithmetic_is_right(chat: bool) -> None:
    for row in load_task("arithmetic", seed=3, options={"rows": 200, "chat": chat}).train:
        found = re.search(r"(\d+) ?([+*]) ?(\d+)", str(row.prompt))
        assert found is not None
        a, sign, b = found.groups()
        assert int(row.columns["solution"]) == (int(a) + int(b) if sign == "+" else int(a) * int(b))


def test_seeds_are_rows_without_a_prompt_and_the_held_out_ones_are_others() -> None:
    options = {"rows": 5, "held_out_rows": 3}
    task, other = (load_task("seeds", seed=seed, options=options) for seed in (0, 1))
    drawn = [row.columns["seed"] for row in (*task.train, *task.held_out, *other.train, *other.held_out)]
    assert len(set(drawn)) == 16
    assert {row.prompt for row in task.train} == {None}
    with pytest.raises(UserError, match="there is no episode") as error:
        tokenize_rows(task.train, character_tokenizer(), DataConfig(train=SourceConfig(name="seeds")))
    assert "episode:" in (error.value.hint or "")
