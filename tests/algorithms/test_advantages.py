"""Laws of the advantages."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dora_rl.algorithms.advantages import RewardError, outcome_advantages
from dora_rl.algorithms.critic import gae, normalised, rewards_at_ends
from dora_rl.core.recipe.algorithm import AdvantageConfig, GaeConfig

from . import references

CONFIGS = [
    AdvantageConfig(),
    AdvantageConfig(baseline="group", scale="none"),
    AdvantageConfig(baseline="group", scale="batch"),
    AdvantageConfig(baseline="leave_one_out", scale="none"),
    AdvantageConfig(baseline="leave_one_out", scale="group"),
    AdvantageConfig(baseline="leave_one_out", scale="batch"),
    AdvantageConfig(baseline="batch", scale="batch"),
    AdvantageConfig(baseline="batch", scale="none"),
    AdvantageConfig(baseline="none", scale="none"),
]
every_config = pytest.mark.parametrize("config", CONFIGS, ids=lambda c: f"{c.baseline}-{c.scale}")

rewards_and_groups = st.lists(
    # A coarse grid: rewards that differ by less than the epsilon are all noise.
    st.tuples(st.integers(-20, 20).map(lambda x: x / 10), st.integers(0, 3)),
    min_size=1,
    max_size=12,
)


def advantages(rewards: list[float], groups: list[int], config: AdvantageConfig) -> list[float]:
    return outcome_advantages(
        torch.tensor(rewards, dtype=torch.float64), torch.tensor(groups), config
    ).tolist()


@every_config
@given(members=rewards_and_groups)
def test_advantages_equal_the_reference(config: AdvantageConfig, members: list[tuple[float, int]]) -> None:
    rewards, groups = [r for r, _ in members], [g for _, g in members]
    expected = references.advantages(rewards, groups, config)
    assert advantages(rewards, groups, config) == pytest.approx(expected, rel=1e-5, abs=1e-6)


@every_config
@given(members=rewards_and_groups, data=st.data())
def test_order_and_names_of_groups_do_not_matter(
    config: AdvantageConfig, members: list[tuple[float, int]], data: st.DataObject
) -> None:
    order = data.draw(st.permutations(range(len(members))))
    before = advantages([r for r, _ in members], [g for _, g in members], config)
    after = advantages([members[i][0] for i in order], [9 - members[i][1] for i in order], config)
    assert after == pytest.approx([before[i] for i in order], rel=1e-6, abs=1e-9)


@pytest.mark.parametrize("config", CONFIGS[:6], ids=lambda c: f"{c.baseline}-{c.scale}")
@given(reward=st.floats(-1e6, 1e6), size=st.integers(1, 9))
def test_equal_rewards_give_exactly_zero(config: AdvantageConfig, reward: float, size: int) -> None:
    rewards, groups = [reward] * size + [0.0, 1.0], [0] * size + [1, 1]
    assert advantages(rewards, groups, config)[:size] == [0.0] * size


@given(reward=st.floats(-1e6, 1e6), size=st.integers(1, 9))
def test_a_batch_of_equal_rewards_gives_exactly_zero(reward: float, size: int) -> None:
    config = AdvantageConfig(baseline="batch", scale="batch")
    assert advantages([reward] * size, list(range(size)), config) == [0.0] * size


def test_one_tenth_three_times_is_no_signal() -> None:
    rewards = [0.1, 0.1, 0.1]
    assert sum(rewards) / 3 != 0.1, "the rounding this is about"
    assert advantages(rewards, [0, 0, 0], AdvantageConfig()) == [0.0, 0.0, 0.0]


@pytest.mark.parametrize("reward", [math.nan, math.inf, -math.inf, 1e300])
def test_a_reward_that_is_no_number_is_named(reward: float) -> None:
    with pytest.raises(RewardError, match="trajectory 1 ") as caught:
        advantages([0.0, reward, 1.0], [0, 0, 0], AdvantageConfig())
    assert caught.value.hint


def test_no_trajectories_have_no_advantages() -> None:
    none = torch.zeros(0), torch.zeros(0, dtype=torch.int64)
    for config in CONFIGS:
        assert outcome_advantages(*none, config).tolist() == []


@given(
    rewards=st.lists(st.lists(st.floats(-2, 2), max_size=9), max_size=4),
    discount=st.floats(0, 1),
    decay=st.floats(0, 1),
    seed=st.integers(0, 99),
)
def test_gae_equals_the_reference(
    rewards: list[list[float]], discount: float, decay: float, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    values = [torch.randn(len(r), generator=generator, dtype=torch.float64).tolist() for r in rewards]
    estimate = gae(
        torch.tensor([x for r in rewards for x in r]),
        torch.tensor([x for v in values for x in v], dtype=torch.float64),
        torch.tensor([i for i, r in enumerate(rewards) for _ in r], dtype=torch.int64),
        GaeConfig(discount=discount, decay=decay),
    )
    expected = [
        x for r, v in zip(rewards, values, strict=True) for x in references.gae(r, v, discount, decay)
    ]
    flat_values = [x for v in values for x in v]
    assert estimate.advantages_T.tolist() == pytest.approx(expected, rel=1e-4, abs=1e-5)
    returns = [a + v for a, v in zip(expected, flat_values, strict=True)]
    assert estimate.returns_T.tolist() == pytest.approx(returns, rel=1e-4, abs=1e-5)


def test_gae_without_discount_or_decay_is_reward_less_value() -> None:
    trajectory_T = torch.tensor([0, 0, 0, 2])
    values_T = torch.tensor([0.5, 0.25, 0.0, 0.75])
    rewards_T = rewards_at_ends(torch.tensor([1.0, 9.0, 2.0]), trajectory_T)
    assert rewards_T.tolist() == [0.0, 0.0, 1.0, 2.0]
    estimate = gae(rewards_T, values_T, trajectory_T, GaeConfig(discount=1.0, decay=1.0))
    assert estimate.advantages_T.tolist() == [0.5, 0.75, 1.0, 1.25]
    assert estimate.returns_T.tolist() == [1.0, 1.0, 1.0, 2.0]


def test_gae_of_a_long_trajectory_reaches_its_beginning() -> None:
    length = 3001
    rewards_T = rewards_at_ends(torch.tensor([1.0]), torch.zeros(length, dtype=torch.int64))
    estimate = gae(
        rewards_T, torch.zeros(length), torch.zeros(length, dtype=torch.int64), GaeConfig(decay=0.999)
    )
    assert estimate.advantages_T[0].item() == pytest.approx(0.999 ** (length - 1), rel=1e-5)


@given(values=st.lists(st.integers(-30, 30).map(lambda x: x / 10), min_size=2, max_size=20))
def test_normalised_advantages_have_mean_zero_and_deviation_one(values: list[float]) -> None:
    result_T = normalised(torch.tensor(values), 1e-6)
    assert result_T.mean().item() == pytest.approx(0, abs=1e-5)
    if len(set(values)) == 1:
        assert result_T.tolist() == [0.0] * len(values)
    else:
        assert result_T.std().item() == pytest.approx(1, rel=1e-4)
