"""What a decode round costs, learned from rounds of many sizes."""

import pytest

from dora_rl.control.round_cost import LearnedRoundCost


def test_what_a_round_costs_is_learned_in_spite_of_compiling() -> None:
    learned = LearnedRoundCost()
    for seconds in (3.4, 3.3, 2.8):
        learned.observe(1, 256, 25_600.0, seconds)
    for versions, rows, tokens in [
        (1, 256, 9e4),
        (2, 300, 3e4),
        (3, 128, 6e4),
        (1, 32, 1e4),
        (2, 64, 6e4),
    ] * 8:
        learned.observe(versions, rows, tokens, 1e-3 * versions + 4e-6 * rows + 1e-8 * tokens)
    cost = learned.believed()
    assert cost is not None
    for versions, rows, tokens in [(1, 256, 9e4), (4, 512, 1e5), (1, 8, 1e3)]:
        seconds = 1e-3 * versions + 4e-6 * rows + 1e-8 * tokens
        assert cost.round_s(versions, rows, tokens) == pytest.approx(seconds, rel=0.05)
    assert cost.drag(2, 512) > 1.5 * cost.drag(1, 256)


def test_rounds_that_were_all_alike_are_the_versions() -> None:
    learned = LearnedRoundCost()
    assert learned.believed() is None
    for _ in range(20):
        learned.observe(1, 256, 1e5, 2e-3)
    cost = learned.believed()
    assert cost is not None
    assert (cost.version_s, cost.row_s, cost.token_s) == (pytest.approx(2e-3), 0.0, 0.0)


def test_no_slope_is_below_zero() -> None:
    """More rows took less time, by chance: then rows cost nothing, and nothing is paid back for them."""
    learned = LearnedRoundCost()
    for rows, seconds in [(10, 3e-3), (100, 2e-3), (200, 1e-3)] * 10:
        learned.observe(1, rows, 100.0 * rows, seconds)
    cost = learned.believed()
    assert cost is not None
    assert cost.row_s == cost.token_s == 0.0
    assert cost.version_s > 0.0
