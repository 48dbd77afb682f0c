"""The fluid model of a run, and the smallest R that it finds sufficient."""

import pytest

from dora_rl.control.level import Flow, fresh_level, publish_interval_s
from dora_rl.control.round_cost import RoundCost

BATCH = 64


def flow(
    *,
    group_s: float,
    train_s: float = 10.0,
    rows: float = 1e6,
    halts: bool = False,
    passes: float = 1.0,
    cost: RoundCost | None = None,
) -> Flow:
    """A run whose groups all take the same time."""
    return Flow(
        batch_groups=BATCH,
        group_size=4,
        max_staleness=3,
        train_s=train_s,
        group_s=[group_s] * 64,
        member_s=[group_s] * 64,
        rows=rows,
        pass_rate=passes,
        halts=halts,
        round_cost=cost,
    )


def test_the_trainer_is_never_idle_with_enough_groups() -> None:
    assert publish_interval_s(flow(group_s=5.0), 2 * BATCH) == pytest.approx(10.0, rel=0.02)


def test_with_one_batch_active_at_a_publish_every_second_one_waits() -> None:
    # Two batches end 10 s apart: one began while the other was trained on, one when the trainer was idle.
    assert publish_interval_s(flow(group_s=15.0), BATCH) == pytest.approx(12.5, rel=0.02)


def test_an_interval_is_at_least_what_the_rows_take() -> None:
    # 64 x 4 rows of 20 s on 256 rows: 20 s a batch, whatever R is.
    assert publish_interval_s(flow(group_s=20.0, rows=256.0), 4 * BATCH) == pytest.approx(20.0, rel=0.1)


def test_where_nothing_generates_meanwhile_times_add_up() -> None:
    # Two batches start while the trainer is idle, generate for 5 s, and are trained on one after the other.
    halted = flow(group_s=5.0, halts=True)
    assert publish_interval_s(halted, BATCH) == pytest.approx((5.0 + 10.0 + 10.0) / 2, rel=0.02)


def test_filtered_groups_take_time_too() -> None:
    full = publish_interval_s(flow(group_s=20.0, rows=256.0), 4 * BATCH)
    assert publish_interval_s(flow(group_s=20.0, rows=256.0, passes=0.5), 4 * BATCH) > 1.6 * full


@pytest.mark.parametrize("group_s", [3.0, 12.0, 25.0])
def test_the_level_is_the_smallest_that_costs_little(group_s: float) -> None:
    run, cost = flow(group_s=group_s), 0.02
    level = fresh_level(run, cost)
    fastest = publish_interval_s(run, 4 * BATCH)
    assert publish_interval_s(run, level) <= (1.0 + cost) * fastest
    assert level == BATCH or publish_interval_s(run, level - BATCH // 16) > (1.0 + cost) * fastest


def test_longer_groups_need_more_of_them() -> None:
    levels = [fresh_level(flow(group_s=group_s), 0.02) for group_s in (3.0, 12.0, 25.0)]
    assert levels == sorted(levels)
    assert levels[0] < levels[-1]


def test_versions_that_decode_in_turn_slow_each_other_down() -> None:
    a_step_each = RoundCost(version_s=0.01, row_s=0.0, versions=1.0, rows=100.0)
    free, dear = flow(group_s=25.0), flow(group_s=25.0, cost=a_step_each)
    assert publish_interval_s(dear, 4 * BATCH) > 1.5 * publish_interval_s(free, 4 * BATCH)
    assert fresh_level(dear, 0.02) < fresh_level(free, 0.02)
