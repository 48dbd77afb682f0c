"""Estimates: what control believes comes from what it saw, and stays sane before it saw anything."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dora_rl.control.estimates import Average, EnvironmentWaits, Estimates, LearnedLengths
from dora_rl.core.instance_seconds import InstanceSeconds


def lengths(*seen: int, max_tokens: int = 10_000, bias: float = 1.0) -> LearnedLengths:
    estimate = LearnedLengths(prior_tokens=100, max_tokens=max_tokens, bias=bias)
    for tokens in seen:
        estimate.observe(tokens)
    return estimate


def test_before_anything_was_seen_the_prior_stands_in() -> None:
    assert lengths().mean() == pytest.approx(100.0)


def test_the_mean_is_learned() -> None:
    rng = Random(0)
    drawn = [int(rng.lognormvariate(6.0, 1.0)) + 1 for _ in range(5000)]
    assert lengths(*drawn).mean() == pytest.approx(sum(drawn) / len(drawn), rel=0.1)


def test_the_longest_of_many_is_longer_than_the_mean_and_within_the_cap() -> None:
    rng = Random(1)
    estimate = lengths(*(int(rng.lognormvariate(5.0, 1.0)) + 1 for _ in range(5000)))
    assert estimate.mean() < estimate.longest_of(10) < estimate.longest_of(1000) <= 10_000


def test_what_has_run_long_is_expected_to_run_longer_than_what_is_expected_of_a_new_one() -> None:
    """Heavy tails: the longer a trajectory has been running, the more it has still to go."""
    rng = Random(2)
    estimate = lengths(*(int(rng.lognormvariate(5.0, 1.5)) + 1 for _ in range(20_000)))
    assert estimate.remaining(1000.0) > estimate.remaining(50.0)


@given(
    seen=st.lists(st.integers(1, 5000), max_size=50),
    progress=st.floats(0.0, 5000.0),
)
def test_what_is_left_is_at_least_a_token_and_at_most_the_cap(seen: list[int], progress: float) -> None:
    left = lengths(*seen, max_tokens=5000).remaining(progress)
    assert 1.0 <= left <= max(1.0, 5000.0 - progress)


@given(st.lists(st.integers(1, 5000), max_size=50))
def test_a_bias_scales_every_belief(seen: list[int]) -> None:
    plain, doubled = lengths(*seen), lengths(*seen, bias=2.0)
    assert doubled.mean() == pytest.approx(2.0 * plain.mean())
    assert doubled.longest_of(10) == pytest.approx(2.0 * plain.longest_of(10))


def test_an_average_follows_what_it_sees() -> None:
    average = Average(10.0)
    average.observe(4.0)
    assert average.value == 4.0, "what was seen replaces the prior"
    for _ in range(30):
        average.observe(8.0)
    assert average.value == pytest.approx(8.0, rel=0.01)


def test_durations_are_measured_from_beginning_to_end() -> None:
    estimates = Estimates(lengths=lengths(), load_s=9.0, move_s=9.0, step_s=0.1)
    assert estimates.train_s is None
    estimates.load_began(0, 10.0)
    estimates.load_ended(0, 13.0)
    estimates.move_began(5, 1.0)
    estimates.move_ended(5, 1.5)
    estimates.trained(60.0)
    assert (estimates.load_s, estimates.move_s, estimates.train_s) == (3.0, 0.5, 60.0)


def test_an_end_without_a_beginning_teaches_nothing() -> None:
    estimates = Estimates(lengths=lengths(), load_s=9.0, move_s=9.0, step_s=0.1)
    estimates.load_began(0, 10.0)
    estimates.forget_instance(0)
    estimates.load_ended(0, 500.0)
    estimates.move_ended(1, 500.0)
    assert (estimates.load_s, estimates.move_s) == (9.0, 9.0)


def test_prefill_that_is_paid_for_after_a_look_costs_what_it_costs() -> None:
    estimates = Estimates(lengths=lengths(), load_s=1.0, move_s=1.0, step_s=0.02)
    paid_s = 0.0
    for _ in range(40):
        # A burst of many tokens, of which half is computed when the next few are asked for.
        for tokens, spent_s in ((10_000, 0.5), (10, 0.5)):
            estimates.prefills(tokens)
            paid_s += spent_s
            estimates.instances_told({0: InstanceSeconds(prefill_s=paid_s)})
            assert 4e-5 < estimates.prefill_s < 4e-4, "each token took 0.1 ms"


def test_waits_are_looked_at_again_however_many_there_were() -> None:
    waits = EnvironmentWaits()
    for _ in range(100_000):
        waits.observe(1.0)
    for _ in range(2 * 2048):
        waits.observe(60.0)
    assert waits.remaining(0.0) == pytest.approx(60.0)
