"""Which level of R is named where devices take turns."""

from random import Random

import pytest
from msgspec.structs import replace

from dora_rl.control.round_cost import RoundCost
from dora_rl.control.turns import DevicesInTurn, FreshLevel, publish_interval_s

BATCH, SIZE, PAUSE_S = 16, 4, 0.3


def turns(
    groups: list[tuple[float, ...]],
    *,
    version_s: float = 1e-3,
    row_s: float = 3e-6,
    slots: int = 2 * BATCH * SIZE,
    kv_tokens: float = 1e9,
    passes: float = 1.0,
    instances: int = 1,
    bound: int = 3,
) -> DevicesInTurn:
    return DevicesInTurn(
        batch_groups=BATCH,
        group_size=SIZE,
        max_staleness=bound,
        pause_s=PAUSE_S,
        groups=groups,
        prompt_tokens=10.0,
        cost=RoundCost(version_s=version_s, row_s=row_s, versions=1.0, rows=64.0),
        instances=instances,
        slots=slots,
        kv_tokens=kv_tokens,
        pass_rate=passes,
    )


CAPPED = [(512.0,) * SIZE] * 64


def tailed(seed: int = 0) -> list[tuple[float, ...]]:
    rng = Random(seed)
    return [tuple(min(4000.0, rng.lognormvariate(5.0, 1.3)) for _ in range(SIZE)) for _ in range(256)]


def test_two_batches_that_end_together_share_their_rounds() -> None:
    """At R = B two batches start at once under one version, and are trained on one after the other."""
    round_s = 1e-3 + 3e-6 * 2 * BATCH * SIZE
    expected_s = (512 * round_s + 2 * PAUSE_S) / 2
    assert publish_interval_s(turns(CAPPED), BATCH) == pytest.approx(expected_s, rel=0.01)


def test_answers_of_one_length_need_no_more_than_a_batch() -> None:
    assert FreshLevel().found(turns(CAPPED), 0.015) == BATCH


def test_a_long_tail_needs_more_than_a_batch_where_versions_cost_little() -> None:
    few, many = (publish_interval_s(turns(tailed(), slots=1024), ratio * BATCH) for ratio in (1, 3))
    assert many < 0.95 * few
    assert FreshLevel().found(turns(tailed(), slots=1024), 0.015) >= 2 * BATCH


def test_the_window_waits_for_those_that_could_not_make_it() -> None:
    """Versions of a run that may be one step old are waited for sooner than those that may be five."""
    narrow, wide = (
        publish_interval_s(turns(tailed(), slots=1024, bound=bound), 2 * BATCH) for bound in (1, 5)
    )
    assert narrow > 1.1 * wide


def test_filtered_groups_scarce_kv_and_shared_instances_take_time() -> None:
    plain_s = publish_interval_s(turns(CAPPED), BATCH)
    assert publish_interval_s(turns(CAPPED, passes=0.5), BATCH) > 1.3 * plain_s
    assert publish_interval_s(turns(CAPPED, kv_tokens=50.0), BATCH) > 1.1 * plain_s
    dear = turns(tailed(), version_s=1e-2)
    spread = turns(tailed(), version_s=1e-2, instances=4)
    assert publish_interval_s(spread, 3 * BATCH) < 0.8 * publish_interval_s(dear, 3 * BATCH)


def test_where_nothing_may_be_stale_there_is_one_level() -> None:
    assert FreshLevel().found(turns(tailed(), bound=0), 0.015) == BATCH


def test_pauses_that_shrink_do_not_favour_what_was_looked_at_last() -> None:
    """In its first steps a run pauses for longer: that is no merit of the levels looked at later."""
    level = FreshLevel()
    for step in range(20):
        run = turns(CAPPED)
        assert level.found(replace(run, pause_s=PAUSE_S + 3.0 * 0.8**step), 0.015) == BATCH


def test_what_can_fill_no_batch_takes_for_ever() -> None:
    assert publish_interval_s(turns(CAPPED, slots=2), BATCH) == float("inf")


def test_one_look_after_another_names_nearly_the_same() -> None:
    """The same looks name the same, which is what a replay needs; and many of them do not swing."""
    first, again = FreshLevel(), FreshLevel()
    run = turns(tailed(), slots=1024)
    named = [first.found(run, 0.015) for _ in range(20)]
    assert named == [again.found(run, 0.015) for _ in range(20)]
    assert max(named[10:]) - min(named[10:]) <= BATCH
