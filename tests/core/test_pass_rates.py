"""pass@k is the mean over all choices of k samples, no more and no less."""

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dora_rl.core.pass_rates import is_passed, pass_at, pass_rates


@given(st.lists(st.booleans(), min_size=1, max_size=9), st.data())
def test_pass_at_k_is_the_mean_over_all_choices_of_k_samples(passed: list[bool], data: st.DataObject) -> None:
    k = data.draw(st.integers(1, len(passed)))
    chosen = [any(each) for each in combinations(passed, k)]
    assert pass_at(len(passed), sum(passed), k) == pytest.approx(sum(chosen) / len(chosen))


def test_rates_are_of_prompts_with_enough_samples() -> None:
    rates = pass_rates([[True, False, False, False, False], [True], [False] * 5], 5)
    assert rates == pytest.approx({"pass@1": 0.4, "pass@2": 0.2, "pass@4": 0.4, "pass@5": 0.5})
    assert list(rates) == ["pass@1", "pass@2", "pass@4", "pass@5"]


def test_a_sample_passes_by_the_whole_reward_or_one_function_and_without_either_does_not_count() -> None:
    values = {"right": 1.0, "short": None}
    assert is_passed(0.5, values, None, 1.0) is False
    assert is_passed(0.5, values, "right", 1.0) is True
    assert is_passed(0.5, values, "short", 1.0) is None
    assert is_passed(None, {}, None, 1.0) is None
