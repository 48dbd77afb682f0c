"""What the length cap costs."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dora_rl.algorithms.regularisers import is_masked, rewards_less_overlong
from dora_rl.core.recipe.algorithm import OverlongConfig


def dapo_penalty(length: int, cap: int, cache: int) -> float:
    """Equation 13 as it is printed."""
    if length <= cap - cache:
        return 0.0
    return (cap - cache - length) / cache if length <= cap else -1.0


@given(length=st.integers(0, 25_000))
def test_the_soft_penalty_is_dapos(length: int) -> None:
    rewards_N = rewards_less_overlong(
        torch.tensor([1.0]),
        torch.tensor([length]),
        OverlongConfig(penalty=1.0, buffer_share=0.2),
        max_tokens=20_480,
    )
    assert rewards_N.item() == pytest.approx(1 + dapo_penalty(length, 20_480, 4096), abs=1e-6)


def test_without_a_penalty_rewards_stay() -> None:
    rewards_N = torch.tensor([1.0, -1.0])
    config = OverlongConfig()
    assert torch.equal(
        rewards_less_overlong(rewards_N, torch.tensor([99, 100]), config, max_tokens=100), rewards_N
    )


def test_only_cut_trajectories_are_masked_and_only_when_asked() -> None:
    is_cut_N = torch.tensor([True, False, True])
    assert is_masked(is_cut_N, OverlongConfig(mask=True)).tolist() == [True, False, True]
    assert is_masked(is_cut_N, OverlongConfig()).tolist() == [False, False, False]
