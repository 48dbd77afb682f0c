"""Shares: exact sums, at least one for everyone, and more for whoever wants more."""

from itertools import pairwise

from hypothesis import example, given
from hypothesis import strategies as st

from dora_rl.control.shares import exclusive_bins, largest_remainder, merged_bins

demands_and_total = st.lists(st.floats(0.0, 1e9), min_size=1, max_size=8).flatmap(
    lambda demands: st.tuples(st.just(demands), st.integers(len(demands), 200))
)


@given(demands_and_total)
def test_shares_sum_exactly_and_nobody_gets_nothing(case: tuple[list[float], int]) -> None:
    demands, total = case
    shares = largest_remainder(demands, total)
    assert sum(shares) == total
    assert min(shares) >= 1


@given(demands_and_total, st.data())
def test_lower_bounds_hold_as_far_as_there_are_instances(
    case: tuple[list[float], int], data: st.DataObject
) -> None:
    demands, total = case
    least = data.draw(st.lists(st.integers(0, 30), min_size=len(demands), max_size=len(demands)))
    shares = largest_remainder(demands, total, least)
    assert sum(shares) == total
    assert min(shares) >= 1
    if sum(max(1, bound) for bound in least) <= total:
        assert all(share >= bound for share, bound in zip(shares, least, strict=True))


@given(demands_and_total)
def test_whoever_wants_more_does_not_get_less(case: tuple[list[float], int]) -> None:
    demands, total = case
    shares = largest_remainder(demands, total)
    order = sorted(range(len(demands)), key=lambda i: demands[i])
    for i, j in pairwise(order):
        assert demands[i] == demands[j] or shares[i] <= shares[j]


@given(demands_and_total, st.data())
def test_wanting_more_never_gives_less(case: tuple[list[float], int], data: st.DataObject) -> None:
    demands, total = case
    i = data.draw(st.integers(0, len(demands) - 1))
    more = list(demands)
    more[i] += data.draw(st.floats(0.0, 1e9))
    assert largest_remainder(more, total)[i] >= largest_remainder(demands, total)[i]


@given(demands_and_total)
def test_a_share_is_its_quota_rounded_where_everyone_wants_at_least_one(
    case: tuple[list[float], int],
) -> None:
    demands, total = case
    quotas = [total * demand / (sum(demands) or 1.0) for demand in demands]
    if min(quotas) >= 1.0:
        for share, quota in zip(largest_remainder(demands, total), quotas, strict=True):
            assert quota - 1.0 <= share <= quota + 1.0


versions = st.dictionaries(st.integers(0, 20), st.floats(0.0, 1e6), min_size=1, max_size=8)


@example({0: 0.0, 1: 5e-324}, 2)
@given(versions, st.integers(1, 10))
def test_every_version_is_in_exactly_one_bin_and_bins_fit_the_fleet(
    demands: dict[int, float], num_instances: int
) -> None:
    for bins in (
        exclusive_bins(demands, num_instances),
        merged_bins(demands, num_instances, lambda versions, quota: len(versions) <= 2),
        merged_bins(demands, num_instances, lambda versions, quota: quota <= 1.0),
    ):
        assert [version for b in bins for version in b] == sorted(demands)
        assert len(bins) <= num_instances


def test_exclusive_means_alone_while_there_are_instances_enough() -> None:
    assert exclusive_bins({3: 1.0, 1: 5.0, 2: 9.0}, 3) == [(1,), (2,), (3,)]
    assert exclusive_bins({3: 1.0, 1: 5.0, 2: 9.0}, 2) == [(1,), (2, 3)]


def test_versions_merge_only_where_they_may() -> None:
    demands = {0: 1.0, 1: 1.0, 2: 98.0}
    assert merged_bins(demands, 10, lambda versions, quota: 2 not in versions) == [(0, 1), (2,)]
    assert merged_bins(demands, 10, lambda versions, quota: False) == [(0,), (1,), (2,)]
