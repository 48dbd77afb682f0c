"""The built-in rewards, against what their definitions say."""

import time
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dora_rl.envs.rewards.accuracy import accuracy_reward
from dora_rl.envs.rewards.costly_answers import is_costly
from dora_rl.envs.rewards.formats import format_reward, think_format_reward
from dora_rl.envs.rewards.length_penalty import overlong_penalty
from dora_rl.envs.rewards.match import exact_match
from dora_rl.envs.rewards.numbers import as_number, last_boxed
from dora_rl.envs.rewards.repetition import repetition_penalty


def said(text: str) -> list[dict[str, str]]:
    return [{"role": "assistant", "content": text}]


@pytest.mark.parametrize(
    ("text", "solution", "reward"),
    [
        ("so it is 72.", "48/2 = 24\n#### 72", 1.0),
        ("#### 72 dollars\nDone in 3 steps.", "#### 72", 1.0),
        (r"hence \boxed{72} and not 73", "72", 1.0),
        (r"\boxed{\frac{1}{2}}", "0.5", 1.0),
        (r"\boxed{\dfrac{2}{4}}", r"\boxed{\frac{1}{2}}", 1.0),
        ("the total is $1,234.50", "1234.5", 1.0),
        ("that makes 50%", "0.5", 1.0),
        ("that makes 50%", "50", 1.0),
        ("it falls by -3", "-3", 1.0),
        ("0.333", "1/3", 0.0),
        ("0.1 + 0.2 = 0.3", "0.3", 1.0),
        ("0.30000000000000004", "0.3", 0.0),
        ("72 or 73", "72", 0.0),
        ("no idea", "72", 0.0),
        ("", "72", 0.0),
        (r"\boxed{x + 1}", "x+1", 1.0),
        ("1/0", "1", 0.0),
        ("1e999999999", "1", 0.0),
        ("72", "", None),
    ],
)
def test_accuracy_by_numbers(text: str, solution: str, reward: float | None) -> None:
    assert accuracy_reward([text], [solution], checker="numbers") == [reward]
    assert accuracy_reward([said(text)], [solution], checker="numbers") == [reward]


@given(st.fractions(max_denominator=999))
def test_a_fraction_is_compared_exactly(value: Fraction) -> None:
    assert as_number(str(value)) == value
    assert accuracy_reward([f"it is {value}"], [str(value)], checker="numbers") == [1.0]
    assert accuracy_reward([f"it is {value + 1}"], [str(value)], checker="numbers") == [0.0]


def test_boxes_may_be_nested_and_unclosed() -> None:
    assert last_boxed(r"\boxed{1} then \boxed{\sqrt{2}}") == r"\sqrt{2}"
    assert last_boxed(r"\boxed{\sqrt{2}") is None


@pytest.mark.parametrize(
    ("text", "solution", "reward"),
    [
        (r"$\boxed{\frac{1}{2}}$", "0.5", 1.0),
        ("the answer is 72", "48/2 = 24\n#### 72", 1.0),
        (r"$\boxed{x^2+2x+1}$", r"$(x+1)^2$", 1.0),
        ("the answer is 24", "48/2 = 24\n#### 72", 0.0),
        ("no idea", "72", 0.0),
    ],
)
def test_accuracy_by_math_verify(text: str, solution: str, reward: float) -> None:
    pytest.importorskip("math_verify")
    assert accuracy_reward([text], [solution], checker="math-verify") == [reward]


@pytest.mark.parametrize(
    ("text", "reward"),
    [
        ("<think>a\nb</think>c", 1.0),
        ("<think></think>", 1.0),
        ("x<think>a</think>", 0.0),
        ("<think>a<think>b</think>", 0.0),
        ("<think>a", 0.0),
    ],
)
def test_thinking_comes_first_and_once(text: str, reward: float) -> None:
    assert think_format_reward([text, said(text)]) == [reward, reward]


def test_a_format_is_a_whole_match() -> None:
    assert format_reward(["12", "12x", "a\n1"], pattern=r"\d+") == [1.0, 0.0, 0.0]
    assert format_reward(["a\n1"], pattern=r"a.1") == [1.0]


@given(st.integers(0, 300))
def test_the_overlong_penalty_is_daposs_ramp(num_tokens: int) -> None:
    (penalty,) = overlong_penalty([[0] * num_tokens], max_tokens=100, buffer_tokens=20)
    expected = 0.0 if num_tokens <= 80 else (80 - num_tokens) / 20 if num_tokens <= 100 else -1.0
    assert penalty == pytest.approx(expected)


@given(st.lists(st.sampled_from("abc"), max_size=12), st.integers(1, 4))
def test_repetition_costs_the_share_of_repeated_ngrams(words: list[str], ngram: int) -> None:
    (penalty,) = repetition_penalty([" ".join(words)], ngram=ngram, max_penalty=-2.0)
    seen: set[tuple[str, ...]] = set()
    repeated = 0
    num_ngrams = max(0, len(words) - ngram + 1)
    for start in range(num_ngrams):
        gram = tuple(words[start : start + ngram])
        repeated += gram in seen
        seen.add(gram)
    assert penalty == pytest.approx(-2.0 * repeated / num_ngrams if num_ngrams else 0.0)


def test_exact_match_is_exact() -> None:
    assert exact_match([" 7\n", "7.0", said("7")], ["7", "7", 7]) == [1.0, 0.0, 1.0]
    assert exact_match([" 7"], ["7"], strip=False) == [0.0]


@pytest.mark.parametrize(
    "text",
    [
        r"\boxed{1e3_000_000}",
        r"\boxed{1e30_000_000}",
        r"\boxed{1e+9_9_9_9_9_9_9}",
        r"\boxed{1E99999999999}",
        r"\boxed{1e-99999999}",
        "1e999999999",
        r"\boxed{9^{9^{9}}}",
        r"\boxed{9**9**9**9}",
        r"\boxed{" + "9" * 100_000 + "}",
        "9" * 100_000,
        r"\boxed{0." + "0" * 100_000 + "1}",
        "#### " + r"\text{" * 20_000,
        r"\frac{" * 20_000,
        "1" + " " * 100_000 + "2",
        "1,111" * 20_000,
    ],
    ids=lambda text: f"{text[:24]} ({len(text)})",
)
@pytest.mark.parametrize("solution", ["72", r"\frac{1}{2}", "x+1"])
def test_what_a_model_writes_costs_no_time(text: str, solution: str) -> None:
    began = time.perf_counter()
    assert accuracy_reward([text], [solution], checker="numbers") == [0.0]
    assert time.perf_counter() - began < 0.5


@pytest.mark.parametrize(
    ("answer", "costs"),
    [
        ("9^{9^{9}}", True),
        ("9^{9^9}", True),
        ("9^9^9", True),
        ("9**9**9", True),
        (r"9^{\frac{9^9}{2}}", True),
        ("((((9^{999})^{999})^{999})^{999})", True),
        ("2^{10000000}", True),
        ("1000000!", True),
        ("((9!)!)!", True),
        (r"\binom{1000000}{500000}", True),
        ("1e3_000_000", True),
        ("9" * 5000, True),
        ("(" * 500 + "1" + ")" * 500, True),
        ("72", False),
        ("x^2+2x+1", False),
        ("e^{-x^2/2}", False),
        (r"\frac{10!}{3!7!}", False),
        ("2^{64}-1", False),
        (r"\sqrt{x^2+y^2+z^2}", False),
        ("1.5e10", False),
    ],
    ids=lambda each: str(each)[:24],
)
def test_costly_answers_are_told_by_their_looks(answer: str, costs: bool) -> None:
    assert is_costly(answer) == costs


@pytest.mark.parametrize("answer", ["9^{9^{9}}", "1000000!", r"\binom{1000000}{500000}", "1e3_000_000"])
def test_a_costly_answer_is_not_worked_out_by_math_verify_either(answer: str) -> None:
    pytest.importorskip("math_verify")
    began = time.perf_counter()
    assert accuracy_reward([rf"\boxed{{{answer}}}"], ["72"], checker="math-verify") == [0.0]
    assert accuracy_reward([f"it is ${answer}$"], ["72"], checker="math-verify") == [0.0]
    assert time.perf_counter() - began < 5
