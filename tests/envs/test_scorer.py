"""Reward functions in TRL's form are called as TRL calls them, and whatever they do becomes data."""

import asyncio
import math
from pathlib import Path

import pytest

from dora_rl.core.errors import UserError
from dora_rl.core.recipe.data import RewardConfig
from dora_rl.envs.scoring.functions import check_columns, load_function
from dora_rl.envs.scoring.reward_messages import (
    ExtraColumn,
    Item,
    Metric,
    Needs,
    Per,
    RewardFailure,
    ScoreRequest,
    ScoreResult,
    TrainerState,
)
from dora_rl.envs.scoring.reward_scorer import Scorer

from .scored import USER, asked, item, user


def score(*rewards: RewardConfig, items: tuple[Item, ...], per: Per = "trajectory") -> ScoreResult:
    scorer = Scorer([load_function(r) for r in rewards], time_limit_s=5.0, began=lambda *_: None)
    scores = scorer.call_plain(asked(0, *items, per=per))
    asyncio.run(scorer.call_async(scores))
    return scores.result()


def values(result: ScoreResult) -> dict[str, tuple[float | None, ...]]:
    assert not result.failures, result.failures[0].detail
    return {scores.function: scores.values for scores in result.scores}


def test_a_function_gets_every_column_and_what_trl_promises() -> None:
    result = score(user("by_answer"), items=(item("abc", answer="abc", extra=[1, 2]),))
    assert values(result) == {"by_answer": (1.0,)}
    assert result.metrics == (Metric(name="num_ids", value=3.0),)


def test_a_function_without_kwargs_gets_what_it_names() -> None:
    assert values(score(user("strict"), items=(item("x", answer="y", extra=1),))) == {"strict": (0.0,)}


def test_completions_are_messages_where_prompts_are_and_strings_otherwise() -> None:
    chat = [{"role": "user", "content": "hi"}]
    assert values(score(user("chat"), items=(item("four", prompt=chat),))) == {"chat": (4.0,)}
    assert values(score(user("length"), items=(item("four", prompt="hi"),))) == {"length": (4.0,)}


def test_a_reward_is_small_enough_for_sums_and_squares_with_its_weight() -> None:
    assert not score(user("length", weight=1e12), items=(item("x" * 999),)).failures
    (failure,) = score(user("length", weight=1e14), items=(item("x" * 999),)).failures
    assert failure.reason == "too large"
    metrics = score(user("huge_metric"), items=(item("x"),)).metrics
    assert all(math.isnan(metric.value) for metric in metrics)


def test_functions_are_told_how_far_the_run_is_and_note_columns_beside_completions() -> None:
    scorer = Scorer([load_function(user("by_progress"))], time_limit_s=5.0, began=lambda *_: None)
    state = TrainerState(global_step=3, max_steps=12, epoch=0.5)
    request = ScoreRequest(request=0, per="trajectory", items=(item("ab"),), state=state)
    result = scorer.call_plain(request).result()
    assert values(result) == {"by_progress": (0.75,)}
    assert result.extras == (
        ExtraColumn(name="characters", values=(2,)),
        ExtraColumn(name="parsed", values=("{'text': 'ab'}",)),
    )


def test_a_function_of_ones_own_is_called_for_a_group_unless_it_is_said_otherwise() -> None:
    assert RewardConfig(function="mine.py:f").called_per == "group"
    assert RewardConfig(function="object:f").called_per == "group"
    assert RewardConfig(function="mine.py:f", per="trajectory").called_per == "trajectory"
    assert RewardConfig(function="accuracy_reward").called_per == "trajectory"


def test_one_value_for_several_completions_is_a_failure() -> None:
    members = tuple(item("x" * n) for n in (3, 1, 2))
    (failure,) = score(RewardConfig(function=f"{USER}:one"), items=members, per="group").failures
    assert (failure.reason, failure.detail) == ("wrong result", "returned 1 values for 3 completions")


def test_a_group_is_one_call_over_all_members() -> None:
    members = tuple(item("x" * n) for n in (3, 1, 2))
    result = score(user("rank", per="group"), user("length"), items=members, per="group")
    assert values(result) == {"rank": (2.0, 0.0, 1.0)}


@pytest.mark.parametrize("function", ["judge", "naps"])
def test_asynchronous_functions_are_awaited(function: str) -> None:
    assert len(values(score(user(function), user("half"), items=(item("0"),)))) == 2


@pytest.mark.parametrize(
    ("function", "reason", "words"),
    [
        ("loud", "raised", "ValueError: cannot judge x"),
        ("leaves", "raised", "SystemExit: 3"),
        ("raises_later", "raised", "KeyError: 'later'"),
        ("not_finite", "not finite", "nan"),
        ("huge", "too large", "a reward is at most 1e+15"),
        ("too_few_extras", "raised", "got 3 values for 1 completions"),
        ("too_few", "wrong result", "0 values for 1 completions"),
        ("words", "wrong result", "'good'"),
    ],
)
def test_failure_is_data_with_the_name_the_row_and_the_reason(function: str, reason: str, words: str) -> None:
    result = score(user(function), user("half"), items=(item("x", row=17),))
    (failure,) = result.failures
    assert (failure.function, failure.row, failure.reason) == (function, 17, reason)
    assert words in failure.detail
    assert failure.label == f"failed: reward {function}, {reason}"
    assert [scores.function for scores in result.scores] == ["half"]


@pytest.mark.parametrize(
    ("detail", "summary"),
    [
        ("no answer within 1 s", "no answer within 1 s"),
        ('Traceback:\n  File "a.py", line 1, in f\n    raise E\nE: first\n\nsecond\n', "E: first"),
        ('  File "a.py", line 1\nKeyError: 1\n\nDuring it:\n  File "a.py", line 2\nE: two', "E: two"),
        ("", ""),
    ],
)
def test_a_failure_is_summed_up_by_its_exception(detail: str, summary: str) -> None:
    assert RewardFailure(function="f", row=0, reason="raised", detail=detail).summary == summary


def test_a_traceback_names_the_users_line() -> None:
    (failure,) = score(user("loud"), items=(item("x"),)).failures
    assert "user_rewards.py" in failure.detail
    assert "in loud" in failure.detail


def test_options_are_bound_and_checked() -> None:
    penalty = {"max_tokens": 4, "buffer_tokens": 2}
    reward = RewardConfig(function="overlong_penalty", options=penalty)
    assert values(score(reward, items=(item("xxx"),))) == {"overlong_penalty": (-0.5,)}
    with pytest.raises(UserError, match="no option 'anwer'") as error:
        load_function(user("strict", options={"anwer": 1}))
    assert error.value.hint == "did you mean 'answer'?"


def test_a_missing_column_names_the_nearest() -> None:
    needs = load_function(user("strict")).required
    assert needs == ("answer",)
    with pytest.raises(UserError, match="needs a column 'answer'") as error:
        check_columns([Needs(function="strict", columns=needs)], ["question", "answers"])
    assert error.value.hint == "did you mean 'answers'? Then map it: columns: {answer: answers}"


def test_a_reward_of_one_completion_is_answered_with_the_form_here() -> None:
    with pytest.raises(UserError, match="needs a column 'completion'") as error:
        check_columns([Needs(function="f", columns=("completion", "answer"))], ["answer"])
    assert (error.value.hint or "").startswith("write 'completions': a reward gets lists")


@pytest.mark.parametrize(
    ("function", "words", "hint"),
    [
        ("acuracy_reward", "no built-in reward 'acuracy_reward'", "did you mean 'accuracy_reward'?"),
        ("no.such.module.f", "no module 'no.such.module'", "check the name"),
        (f"{USER}:lenght", "has no 'lenght'", "did you mean 'length'?"),
        (f"{USER}:SEEN", "is not a function", "name a function"),
        ("absent.py:f", "there is no file absent.py", "check the path"),
    ],
)
def test_a_wrong_name_is_a_sentence(function: str, words: str, hint: str) -> None:
    with pytest.raises(UserError, match=words) as error:
        load_function(RewardConfig(function=function))
    assert error.value.hint is not None
    assert hint in error.value.hint


@pytest.mark.parametrize(
    ("source", "line", "words"),
    [
        ("import math\nimport no_such_package_here\n", 2, "No module named 'no_such_package_here'"),
        ("x = 1\ndef f(:\n", 2, "SyntaxError"),
        ("def g():\n    return 1 / 0\ng()\n", 2, "ZeroDivisionError: division by zero"),
    ],
)
def test_a_file_that_cannot_be_imported_says_where_and_why(
    tmp_path: Path, source: str, line: int, words: str
) -> None:
    path = tmp_path / "mine.py"
    path.write_text(source)
    with pytest.raises(UserError) as error:
        load_function(RewardConfig(function=f"{path}:f"))
    assert f"{path}, line {line}: " in error.value.message
    assert words in error.value.message


def test_a_file_may_import_its_neighbours(tmp_path: Path) -> None:
    (tmp_path / "neighbour_of_mine.py").write_text("WORTH = 4.0")
    path = tmp_path / "with_neighbour.py"
    path.write_text("from neighbour_of_mine import WORTH\ndef f(completions): return [WORTH]")
    assert values(score(RewardConfig(function=f"{path}:f"), items=(item("x"),), per="group")) == {"f": (4.0,)}
