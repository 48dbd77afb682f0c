"""Sources of prompts: told the same again they choose the same, and offers count the visits of a row."""

from collections.abc import Iterator, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dora_rl.core.decisions import Admit, Close
from dora_rl.core.errors import ConfigError, UserError
from dora_rl.core.inputs import Scored, Tick
from dora_rl.core.recipe.data import OrderConfig
from dora_rl.envs.data.rows import Row
from dora_rl.envs.prompt_offers import GroupScores, PromptOffers
from dora_rl.envs.prompt_source import (
    GroupScore,
    IteratedRows,
    PromptSource,
    RowsInOrder,
    ShuffledRows,
    WeightedParts,
    built_in_source,
    make_source,
)


def draw(source: PromptSource, *counts: int) -> list[int]:
    """Rows chosen and offered block by block."""
    drawn: list[int] = []
    for count in counts:
        rows = source.choose(count) or ()
        source.offered(rows)
        drawn += rows
    return drawn


@given(rows=st.integers(1, 40), seed=st.integers(), epochs=st.integers(1, 4))
def test_shuffled_brings_every_row_once_an_epoch(rows: int, seed: int, epochs: int) -> None:
    source, offers = ShuffledRows(rows, seed=seed), PromptOffers(range(1, rows + 1))
    for epoch in range(epochs):
        offered = offers.offer(draw(source, rows), 0.0).prompts
        assert {prompt.epoch for prompt in offered} == {epoch}
        assert sorted(prompt.row for prompt in offered) == list(range(rows))
        assert all(prompt.tokens == prompt.row + 1 for prompt in offered)


@given(rows=st.integers(1, 30), seed=st.integers(), counts=st.lists(st.integers(0, 40), max_size=5))
def test_the_order_does_not_depend_on_the_blocks_it_is_asked_for_in(
    rows: int, seed: int, counts: list[int]
) -> None:
    for blocks, whole in (
        (ShuffledRows(rows, seed=seed), ShuffledRows(rows, seed=seed)),
        (RowsInOrder(rows), RowsInOrder(rows)),
    ):
        assert draw(blocks, *counts) == draw(whole, sum(counts))


@given(rows=st.integers(1, 30), seed=st.integers(), taken=st.integers(0, 90))
def test_a_source_that_is_told_what_was_offered_goes_on_where_it_was(
    rows: int, seed: int, taken: int
) -> None:
    first, second = ShuffledRows(rows, seed=seed), ShuffledRows(rows, seed=seed)
    offered = draw(first, taken)
    first.choose(5)  # A choice that was lost in a crash.
    second.offered(offered)
    assert draw(first, 2 * rows) == draw(second, 2 * rows)


def test_epochs_and_seeds_have_orders_of_their_own() -> None:
    def order(seed: int, epoch: int) -> list[int]:
        return draw(ShuffledRows(50, seed=seed), *([50] * (epoch + 1)))[-50:]

    assert order(0, 0) == order(0, 0)
    assert order(0, 0) != order(0, 1)
    assert order(0, 0) != order(1, 0)


def test_rows_in_order_end_after_their_epochs() -> None:
    source = built_in_source(OrderConfig(name="in_order", options={"epochs": 2}), 3, seed=0)
    assert draw(source, 4) == [0, 1, 2, 0]
    assert draw(source, 4) == [1, 2]
    assert source.choose(4) is None


def test_an_order_that_does_not_exist_or_has_no_such_option_is_refused() -> None:
    with pytest.raises(ConfigError, match="no order 'shufled'"):
        OrderConfig(name="shufled")
    with pytest.raises(ConfigError, match="no option 'epochs'"):
        OrderConfig(options={"epochs": 2})


PARTS = st.lists(st.tuples(st.integers(1, 9), st.floats(0.1, 10)), min_size=1, max_size=4)


def weighted(parts: list[tuple[int, float]], seed: int) -> WeightedParts:
    sources = [ShuffledRows(rows, seed=seed + i) for i, (rows, _) in enumerate(parts)]
    return WeightedParts(sources, [rows for rows, _ in parts], [weight for _, weight in parts])


@given(parts=PARTS, seed=st.integers(), counts=st.lists(st.integers(0, 12), min_size=1, max_size=6))
def test_every_table_has_its_share_at_any_time_and_goes_on_where_it_was(
    parts: list[tuple[int, float]], seed: int, counts: list[int]
) -> None:
    first, second = weighted(parts, seed), weighted(parts, seed)
    drawn = draw(first, *counts)
    assert drawn == draw(weighted(parts, seed), sum(counts))
    begin, total = 0, sum(weight for _, weight in parts)
    for rows, weight in parts:
        own = [row - begin for row in drawn if begin <= row < begin + rows]
        assert abs(len(own) - weight / total * len(drawn)) < len(parts)
        assert sorted(own[:rows]) == sorted(set(own[:rows])), "each row comes once an epoch"
        begin += rows
    assert all(row < begin for row in drawn)
    first.choose(5)  # A choice that was lost in a crash.
    second.offered(drawn)
    assert draw(first, 7) == draw(second, 7)


def test_tables_end_when_one_of_them_does() -> None:
    source = WeightedParts([RowsInOrder(2, epochs=1), RowsInOrder(9)], [2, 9], [1.0, 1.0])
    assert draw(source, 10) == [0, 2, 1, 3]
    assert source.choose(3) is None


# --- a source of the user's own ------------------------------------------------------------------

ROWS = [Row(row=i, prompt="p", columns={"level": 3 - i}) for i in range(4)]


def easiest_first(rows: Sequence[Row], *, seed: int) -> Iterator[int]:
    yield from sorted(range(len(rows)), key=lambda row: rows[row].columns["level"])


def test_a_function_may_yield_rows() -> None:
    source = make_source(easiest_first, ROWS, seed=0, options={})
    assert source.choose(3) == source.choose(3) == [3, 2, 1]
    assert draw(source, 3, 3) == [3, 2, 1, 0]
    assert source.choose(1) is None


def test_a_function_that_yields_otherwise_when_called_again_is_refused() -> None:
    with pytest.raises(UserError, match="another one than before"):
        IteratedRows([1, 2, 3]).offered([1, 3])


def test_what_neither_chooses_nor_yields_is_refused() -> None:
    with pytest.raises(UserError, match="it gave int"):
        make_source(lambda rows, seed: 7, ROWS, seed=0, options={})


# --- offers --------------------------------------------------------------------------------------


@given(st.lists(st.integers(0, 4), max_size=40), st.integers(0, 40))
def test_no_two_offers_have_the_same_epoch_and_row(rows: list[int], cut: int) -> None:
    """Also across a crash: the visits are counted from what was offered before."""
    before, after = PromptOffers([1] * 5), PromptOffers([1] * 5)
    first = before.offer(rows[:cut], 0.0)
    after.recall(first)
    keys = [(prompt.epoch, prompt.row) for prompt in (*first.prompts, *after.offer(rows[cut:], 1.0).prompts)]
    assert len(set(keys)) == len(rows)


@pytest.mark.parametrize("row", [5, -1, "2", None, 1.0])
def test_a_row_that_does_not_exist_is_refused(row: object) -> None:
    with pytest.raises(UserError, match="which does not exist"):
        PromptOffers([1] * 5).offer([row], 0.0)  # type: ignore[list-item]


# --- scores --------------------------------------------------------------------------------------

ADMIT = Admit(group=3, version=2, epoch=1, row=9)


def test_a_group_is_told_of_when_its_last_member_is_scored() -> None:
    scores = GroupScores(group_size=2)
    assert scores.watch(Tick(at=0.0), [ADMIT]) == []
    assert scores.watch(Scored(at=1.0, trajectory=7, reward=1.0), []) == []
    (score,) = scores.watch(Scored(at=2.0, trajectory=6, reward=0.0), [])
    assert score == GroupScore(row=9, epoch=1, version=2, rewards=(0.0, 1.0), outcome="finished")
    assert score.is_mixed


def test_a_filtered_group_is_told_of_with_its_rewards() -> None:
    scores = GroupScores(group_size=2)
    scores.watch(Tick(at=0.0), [ADMIT])
    scores.watch(Scored(at=1.0, trajectory=6, reward=0.0), [])
    close = Close(group=3, members=(6, 7), outcome="filtered: zero variance")
    (score,) = scores.watch(Scored(at=2.0, trajectory=7, reward=0.0), [close])
    assert (score.rewards, score.outcome, score.is_mixed) == ((0.0, 0.0), "filtered: zero variance", False)


def test_a_group_that_lost_a_member_is_told_of_once_with_the_rest() -> None:
    scores = GroupScores(group_size=3)
    scores.watch(Tick(at=0.0), [ADMIT])
    scores.watch(Scored(at=1.0, trajectory=9, reward=1.0), [])
    scores.watch(Scored(at=1.0, trajectory=10, reward=None), [])
    (score,) = scores.watch(
        Tick(at=2.0), [Close(group=3, members=(11,), outcome="failed: environment, 1 tries")]
    )
    assert (score.rewards, score.outcome) == ((1.0, None), "finished")
    assert scores.watch(Tick(at=3.0), [Close(group=3, members=(9, 10), outcome="aborted: redundant")]) == []


def test_a_group_with_too_few_members_left_is_told_of_as_closed() -> None:
    scores = GroupScores(group_size=2)
    scores.watch(Tick(at=0.0), [ADMIT])
    closes = [
        Close(group=3, members=(key,), outcome=outcome)
        for key, outcome in ((6, "failed: x"), (7, "failed: too few"))
    ]
    (score,) = scores.watch(Tick(at=1.0), closes)
    assert (score.rewards, score.outcome) == ((), "failed: too few")
