"""Rounds of groups count in the order in which they started."""

from dora_rl.control.group_rounds import GroupRounds


def test_a_short_group_is_not_counted_before_a_long_one_that_started_earlier() -> None:
    rounds = GroupRounds()
    rounds.started(0, 10)
    rounds.started(1, 20)
    for member, tokens in ((0, 5), (1, 7)):
        rounds.member_ended(1, member, tokens)
    rounds.ended(1)
    assert list(rounds.complete) == []
    rounds.member_ended(0, 0, 900)
    rounds.ended(0)
    assert list(rounds.complete) == [(900.0,), (5.0, 7.0)]
    assert 10 < rounds.prompt_tokens.value < 20


def test_a_group_that_comes_to_nothing_holds_nobody_up() -> None:
    rounds = GroupRounds()
    for group in (0, 1):
        rounds.started(group, 1)
    rounds.member_ended(1, 0, 5)
    rounds.ended(1)
    rounds.forget(0)
    assert list(rounds.complete) == [(5.0,)]
    rounds.forget(1)
    rounds.member_ended(1, 1, 6)
    assert list(rounds.complete) == [(5.0,)], "it is over"


def test_a_group_that_ended_and_is_closed_later_still_counts() -> None:
    rounds = GroupRounds()
    for group in (0, 1):
        rounds.started(group, 1)
        rounds.member_ended(group, 0, 10 + group)
    rounds.ended(1)
    rounds.forget(1)
    rounds.ended(0)
    assert list(rounds.complete) == [(10.0,), (11.0,)]


def test_waits_of_environments_count_as_rounds() -> None:
    rounds = GroupRounds()
    rounds.started(0, 1)
    rounds.waited(0, 0, 30.0)
    rounds.waited(0, 0, 12.0)
    rounds.waited(5, 0, 99.0)
    rounds.member_ended(0, 0, 8)
    rounds.member_ended(0, 1, 8)
    rounds.ended(0)
    assert list(rounds.complete) == [(50.0, 8.0)]
