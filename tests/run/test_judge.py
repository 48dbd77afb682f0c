"""A trajectory is judged once, when all that concerns it is known."""

import pytest

from dora_rl.core.errors import ConfigError
from dora_rl.core.recipe.data import RewardConfig, ScoringConfig
from dora_rl.run.rewards.judge import NO_REWARD, Judge, Judgement
from dora_rl.run.rewards.pool import ScorerPool

from ..envs.scored import USER, item, user
from .pooled import scoring


def judged(config: ScoringConfig, groups: list[list[str]]) -> dict[int, Judgement]:
    """Every trajectory's judgement, numbered through all groups."""
    with ScorerPool(config) as pool:
        judge = Judge(pool, config.rewards)
        number = 0
        for group, texts in enumerate(groups):
            for text in texts:
                judge.trajectory_ended(number, group, item(text, row=group))
                number += 1
            judge.group_ended(group)
        judgements: dict[int, Judgement] = {}
        while len(judgements) < number:
            for judgement in judge.poll(20.0):
                assert judgement.trajectory not in judgements
                judgements[judgement.trajectory] = judgement
        return judgements


def test_rewards_are_weighted_and_none_does_not_count() -> None:
    config = scoring(user("length", weight=2.0), user("half", weight=-1.0), "nothing")
    (judgement,) = judged(config, [["abc"]]).values()
    assert judgement.reward == 2.0 * 3 - 0.5
    assert judgement.values == {"length": 3.0, "half": 0.5, "nothing": None}
    assert judgement.label is None


def test_nothing_that_applies_is_no_reward_and_counted() -> None:
    (judgement,) = judged(scoring("nothing"), [["abc"]]).values()
    assert judgement.reward is None
    assert judgement.label == NO_REWARD


def test_a_failed_function_leaves_no_reward_however_the_others_judged() -> None:
    (judgement,) = judged(scoring("half", "loud"), [["abc"]]).values()
    assert judgement.reward is None
    assert judgement.label == "failed: reward loud, raised"


def test_group_functions_see_the_whole_group_and_only_it() -> None:
    config = scoring("length", user("rank", per="group", weight=10.0), processes=2)
    judgements = judged(config, [["aaa", "a"], ["bb", "bbb", "b"]])
    assert [judgements[n].reward for n in range(5)] == [13.0, 1.0, 12.0, 23.0, 1.0]


def test_a_function_that_compares_completions_works_as_it_is_given() -> None:
    rank = RewardConfig(function=f"{USER}:rank")
    judgements = judged(scoring(rank), [["aaa", "a"], ["bb", "bbb", "b"]])
    assert [judgements[n].reward for n in range(5)] == [1.0, 0.0, 1.0, 2.0, 0.0]


def test_a_group_that_is_compared_is_judged_all_at_once_or_not_at_all() -> None:
    config = scoring("moody_sleep", user("rank", per="group"), processes=2)
    with ScorerPool(config) as pool:
        judge = Judge(pool, config.rewards)
        for number, text in enumerate(["0", "0.5", "0"]):
            judge.trajectory_ended(number, 0, item(text))
        judge.group_ended(0)
        came = [len(judge.poll(1.0)) for _ in range(5)]
    assert [number for number in came if number] == [3]


def test_a_trajectory_is_judged_before_its_group_ends_where_no_function_needs_the_group() -> None:
    config = scoring("length")
    with ScorerPool(config) as pool:
        judge = Judge(pool, config.rewards)
        judge.trajectory_ended(0, 0, item("ab"))
        assert judge.poll(20.0)[0].reward == 2.0


def test_names_must_tell_rewards_apart() -> None:
    with pytest.raises(ConfigError, match="two rewards are called 'f'"):
        ScoringConfig(rewards=(RewardConfig(function="a:f"), RewardConfig(function="b.py:f")))
    ScoringConfig(rewards=(RewardConfig(function="a:f"), RewardConfig(function="b.py:f", name="g")))
    with pytest.raises(ConfigError, match="rewards is empty"):
        ScoringConfig(rewards=())
