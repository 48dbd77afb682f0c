"""Episodes of several branches and turns: one member each, with one advantage, or one for each turn."""

from math import exp, sqrt

import pytest
import torch
from msgspec.structs import replace

from dora_rl.algorithms.advantages import outcome_advantages, turn_advantages
from dora_rl.core.errors import ConfigError
from dora_rl.core.recipe.algorithm import (
    AdvantageConfig,
    AggregationConfig,
    AlgorithmConfig,
    CustomAdvantageConfig,
    GaeConfig,
    OverlongConfig,
)
from dora_rl.core.recipe.loss_configs import GspoConfig, PolicyGradientConfig
from dora_rl.core.recipe.trainer_config import CriticConfig, OptimizerConfig, TrainerConfig
from dora_rl.model.decoder import Decoder
from dora_rl.trainer.examples import TokenScores, prepared
from dora_rl.trainer.tensors import sequences_of
from dora_rl.trainer.train_batch import (
    TrainBatch,
    TrainBranch,
    TrainGroup,
    TrainTrajectory,
    TrainTurn,
    TrajectoryError,
)
from dora_rl.trainer.trainer_factory import trainer_of

FORK = TrainBranch(
    tokens=(5, 6, 7, 20, 21),
    is_policy=(False, False, False, True, True),
    turns=(TrainTurn(order=1, reward=0.5),),
)
EPISODE = TrainTrajectory(
    prompt=(5, 6),
    response=(7, 8, 9, 10),
    is_policy=(True, False, True, True),
    logprobs=(-1.0, -2.0, -3.0, -4.0, -5.0),
    version=0,
    reward=2.0,
    turns=(TrainTurn(order=0, reward=0.25), TrainTurn(order=2)),
    branches=(FORK,),
)
"""Turns in the order they were taken: one token, two of the fork, two of the first branch."""


def plain(*tokens: int, reward: float, prompt: tuple[int, ...] = (5, 6), **fields: object) -> TrainTrajectory:
    return TrainTrajectory(
        prompt=prompt, response=tokens, logprobs=(-4.0,) * len(tokens), version=0, reward=reward, **fields)  # type: ignore[arg-type]  # fmt: skip


def advantages(algorithm: AlgorithmConfig, *members: TrainTrajectory) -> list[list[float]]:
    group = TrainGroup(id=0, members=members)
    ready = prepared([group], [TokenScores() for _ in members], algorithm, max_response_tokens=4)
    return [each.advantages_P.tolist() for each in ready.examples]


# --- rows -----------------------------------------------------------------------------------------


def test_every_branch_is_a_sequence_and_only_tokens_drawn_in_it_are_predicted() -> None:
    found = sequences_of([plain(30, reward=0.0), EPISODE])
    assert found.packed.lengths == (3, 6, 5)
    assert found.packed.tokens_T.tolist() == [5, 6, 30, 5, 6, 7, 8, 9, 10, 5, 6, 7, 20, 21]
    assert found.packed.positions_T.tolist() == [0, 1, 2, 0, 1, 2, 3, 4, 5, 0, 1, 2, 3, 4]
    assert found.targets_P.tolist() == [30, 7, 9, 10, 20, 21]
    assert found.counts == (1, 5)
    assert (EPISODE.num_policy_tokens, EPISODE.num_tokens) == (5, 11)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"turns": ()}, "0 turns for 2 stretches"),
        ({"turns": (TrainTurn(order=0),)}, "1 turns for 2 stretches"),
        ({"logprobs": (-1.0,) * 3}, "3 logprobs for 5 policy tokens"),
        ({"versions": (0, 0, 0)}, "3 versions for 5 policy tokens"),
    ],
)
def test_an_episode_that_contradicts_itself_is_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(TrajectoryError, match=message):
        replace(EPISODE, **changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"is_policy": (False,)}, "1 policy flags for 5 tokens"),
        ({"is_policy": (True, False, False, True, True)}, "has a context"),
        ({"is_policy": (False,) * 5}, "tokens that were drawn"),
        ({"turns": ()}, "0 turns for 1 stretches"),
    ],
)
def test_a_branch_that_contradicts_itself_is_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(TrajectoryError, match=message):
        replace(FORK, **changes)


# --- credit ---------------------------------------------------------------------------------------


def test_all_tokens_of_all_branches_have_the_advantage_of_the_member() -> None:
    """Totals 2 and 0: deviations of 1 from the mean, over a standard deviation of sqrt(2)."""
    first, second = advantages(AlgorithmConfig(), EPISODE, plain(30, 31, reward=0.0))
    assert first == pytest.approx([1 / sqrt(2)] * 5, abs=1e-5)
    assert second == pytest.approx([-1 / sqrt(2)] * 2, abs=1e-5)


def test_credit_by_turn_is_what_came_from_it_on_with_the_same_baseline_and_scale() -> None:
    """Returns from the three turns on: 2, 1.75 and 1.25, less the mean 1, over sqrt(2)."""
    first, second = advantages(AlgorithmConfig(credit="turn"), EPISODE, plain(30, 31, reward=0.0))
    by_turn = [1 / sqrt(2), 0.75 / sqrt(2), 0.25 / sqrt(2)]
    # In the order of the rows: the first branch's two turns, then the fork's.
    assert first == pytest.approx([by_turn[0], by_turn[2], by_turn[2], by_turn[1], by_turn[1]], abs=1e-5)
    assert second == pytest.approx([-1 / sqrt(2)] * 2, abs=1e-5)


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (AdvantageConfig(), [0.5 / sqrt(0.5), -0.5 / sqrt(0.5), -0.5 / sqrt(0.5), 0.0]),
        (AdvantageConfig(scale="none"), [0.5, -0.5, -0.5, -3.0]),
        (AdvantageConfig(baseline="leave_one_out", scale="none"), [1.0, 0.0, -1.0, -3.0]),
        (AdvantageConfig(baseline="none", scale="none"), [2.0, 1.0, 1.0, 1.0]),
        (AdvantageConfig(baseline="batch", scale="none"), [-0.75, -1.75, -1.75, -1.75]),
        (AdvantageConfig(baseline="group", scale="batch"), [x * sqrt(6) for x in (0.5, -0.5, -0.5, -3.0)]),
    ],
)  # fmt: skip
def test_turns_by_every_baseline_and_scale(config: AdvantageConfig, expected: list[float]) -> None:
    """Members of 2 (a second turn after 1 was given) and 1; and two of 4, the second turn of one after 3."""
    rewards_N, group_N = torch.tensor([2.0, 1.0, 4.0, 4.0]), torch.tensor([0, 0, 1, 1])
    given_K, trajectory_K = torch.tensor([0.0, 1.0, 0.0, 3.0]), torch.tensor([0, 0, 1, 2])
    found = turn_advantages(rewards_N, group_N, given_K, trajectory_K, config)
    assert found.tolist() == pytest.approx(expected, rel=1e-4)


def test_a_group_of_one_has_no_advantage_in_any_turn() -> None:
    given_K, trajectory_K = torch.tensor([0.0, 1.0]), torch.tensor([0, 0])
    for config in (
        AdvantageConfig(),
        AdvantageConfig(scale="none"),
        AdvantageConfig(baseline="batch", scale="none"),
    ):
        found = turn_advantages(torch.tensor([2.0]), torch.tensor([0]), given_K, trajectory_K, config)
        assert found.tolist() == [0.0, 0.0]


def test_members_of_one_turn_have_the_same_advantage_by_either_credit() -> None:
    rewards_N, group_N = torch.rand(12), torch.arange(12) % 3
    for config in (AdvantageConfig(), AdvantageConfig(baseline="leave_one_out", scale="none")):
        by_turn = turn_advantages(rewards_N, group_N, torch.zeros(12), torch.arange(12), config)
        assert torch.equal(by_turn, outcome_advantages(rewards_N, group_N, config))


def test_a_penalty_for_length_looks_at_the_longest_turn_against_the_cap_of_a_turn() -> None:
    """Five tokens in turns of 1, 2 and 2 are far from a cap of 4 a turn; four in one are at it."""
    algorithm = AlgorithmConfig(
        advantage=AdvantageConfig(baseline="none", scale="none"), overlong=OverlongConfig(penalty=1.0)
    )
    first, second = advantages(algorithm, EPISODE, plain(1, 2, 3, 4, reward=2.0))
    assert first == [2.0] * 5
    assert second == [1.0] * 4


def test_a_critic_follows_the_tokens_as_they_were_drawn_whatever_their_branch() -> None:
    """With values of 0, discount 1/2 and decay 1, an advantage is the discounted sum of what comes."""
    algorithm = AlgorithmConfig(advantage=GaeConfig(discount=0.5, decay=1.0, normalise=False))
    scores = [TokenScores(values_P=torch.zeros(5))]
    found = prepared([TrainGroup(id=0, members=(EPISODE,))], scores, algorithm)
    # Drawn as 7, then 20 and 21 of the fork, then 9 and 10: the reward of 2 comes with the last.
    in_time = [2 * 0.5**4, 2 * 0.5**3, 2 * 0.5**2, 2 * 0.5, 2.0]
    in_rows = [in_time[i] for i in (0, 3, 4, 1, 2)]
    assert found.examples[0].advantages_P.tolist() == pytest.approx(in_rows)
    found = prepared([TrainGroup(id=0, members=(EPISODE,))], scores, replace(algorithm, credit="turn"))
    # 0.25 with the first token, 0.5 with the fork's last, what is left, 1.25, with the last of all.
    last = [1.25 * 0.5**2 + 0.5, 1.25 * 0.5, 1.25]
    in_time = [0.25 + 0.25 * last[0], 0.5 * last[0], *last]
    assert found.examples[0].advantages_P.tolist() == pytest.approx([in_time[i] for i in (0, 3, 4, 1, 2)])


def test_a_turn_whose_reward_is_no_number_masks_its_member_alone() -> None:
    broken = replace(EPISODE, turns=(TrainTurn(order=0, reward=float("nan")), TrainTurn(order=2)))
    group = TrainGroup(id=0, members=(broken, plain(30, reward=0.0), plain(31, reward=1.0)))
    ready = prepared([group], [TokenScores()] * 3, AlgorithmConfig(credit="turn"))
    assert len(ready.examples) == 2
    assert ready.masked == {"masked: nan reward": 1}


def test_credit_by_turn_does_not_go_with_an_advantage_of_ones_own() -> None:
    with pytest.raises(ConfigError, match=r"credit = turn needs"):
        AlgorithmConfig(credit="turn", advantage=CustomAdvantageConfig(function="own.py:advantage"))


# --- the loss -------------------------------------------------------------------------------------


def trained(
    decoder: Decoder, algorithm: AlgorithmConfig, *members: TrainTrajectory, **fields: object
) -> tuple[dict[str, torch.Tensor], dict[str, float]]:
    """The weights after one step on one group, and what it measured."""
    config = TrainerConfig(
        algorithm=algorithm, optimizer=OptimizerConfig(learning_rate=1e-2), serving_dtype="float32", **fields)  # type: ignore[arg-type]  # fmt: skip
    copy = Decoder.empty(decoder.config)
    copy.load_state_dict(decoder.state_dict())
    trainer = trainer_of(copy, config)
    metrics = trainer.train(TrainBatch(groups=(TrainGroup(id=0, members=members),)))
    return {name: each.clone() for name, each in trainer.served_tensors().items()}, dict(metrics)


WHOLE = plain(7, 8, 20, 21, 9, reward=2.0)
SPLIT = TrainTrajectory(
    prompt=(5, 6),
    response=(7, 8),
    logprobs=(-4.0,) * 5,
    version=0,
    reward=2.0,
    turns=(TrainTurn(order=0),),
    branches=(
        TrainBranch(
            tokens=(5, 6, 7, 8, 20, 21, 9), is_policy=(False,) * 4 + (True,) * 3, turns=(TrainTurn(order=1),)
        ),
    ),
)
"""The same tokens behind the same contexts, as one sequence and as a branch behind the first two."""


@pytest.mark.parametrize(
    "algorithm",
    [
        AlgorithmConfig(aggregation=AggregationConfig(over="token")),
        AlgorithmConfig(aggregation=AggregationConfig(over="sequence")),
        AlgorithmConfig(loss=GspoConfig(), aggregation=AggregationConfig(over="sequence")),
        AlgorithmConfig(loss=PolicyGradientConfig()),
    ],
)
def test_a_member_split_over_branches_is_trained_on_as_one_row_is(
    decoder: Decoder, algorithm: AlgorithmConfig
) -> None:
    other = plain(30, 31, 32, reward=0.0)
    one, one_metrics = trained(decoder, algorithm, WHOLE, other)
    two, two_metrics = trained(decoder, algorithm, SPLIT, other)
    for name in ("loss", "grad_norm", "ratio_mean", "trained/tokens", "trained/trajectories"):
        assert two_metrics[name] == pytest.approx(one_metrics[name], rel=1e-4, abs=1e-6), name
    assert two_metrics["completions/mean_length"] == one_metrics["completions/mean_length"] == 4.0
    for name, own in one.items():
        torch.testing.assert_close(two[name], own, rtol=1e-3, atol=2e-4)


def test_the_ratio_of_gspo_is_the_mean_over_all_branches(decoder: Decoder) -> None:
    algorithm = AlgorithmConfig(loss=GspoConfig())
    _, metrics = trained(decoder, algorithm, SPLIT, plain(30, 31, 32, reward=0.0))
    log_ratios = []
    for member in (SPLIT, plain(30, 31, 32, reward=0.0)):
        logprobs = logprobs_of(decoder, member)
        log_ratios.append(sum(new + 4.0 for new in logprobs) / len(logprobs))
    expected = (5 * exp(log_ratios[0]) + 3 * exp(log_ratios[1])) / 8
    assert metrics["ratio_mean"] == pytest.approx(expected, rel=1e-4)


def logprobs_of(decoder: Decoder, member: TrainTrajectory) -> list[float]:
    from dora_rl.trainer.policy import Policy

    return Policy(decoder)(sequences_of([member])).logprobs_P.tolist()  # type: ignore[no-any-return]


def test_a_critic_learns_from_an_episode_of_branches(decoder: Decoder) -> None:
    algorithm = AlgorithmConfig(advantage=GaeConfig(), credit="turn")
    _, metrics = trained(decoder, algorithm, EPISODE, plain(30, 31, 32, reward=0.0), critic=CriticConfig())
    assert metrics["value_loss"] > 0
    assert metrics["trained/tokens"] == 8.0
