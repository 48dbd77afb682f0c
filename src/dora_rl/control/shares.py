"""Shares: how many instances each version gets, and which versions decode in turn on one.

Pure arithmetic over demands (expected tokens left). A bin is a set of versions that live together;
`exclusive` makes every version its own bin, `shared` puts all of them into one, and `auto` merges
only those that an instance of their own would waste.
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise

Bin = tuple[int, ...]
"""Versions that share instances, oldest first."""


def largest_remainder(demands: Sequence[float], total: int, least: Sequence[int] | None = None) -> list[int]:
    """Split `total` in proportion to `demands`: at least one each, summing to exactly `total`.

    `least` are further lower bounds (what a version's KV needs), kept as far as `total` allows.

    >>> largest_remainder([1.0, 1.0, 98.0], 10)
    [1, 1, 8]
    >>> largest_remainder([1.0, 99.0], 4, least=[2, 1])
    [2, 2]
    """
    assert total >= len(demands), f"{len(demands)} demands cannot each have one of {total}"
    whole = sum(demands) or 1.0
    quotas = [total * demand / whole for demand in demands]
    floors = [max(1, bound) for bound in least or [1] * len(demands)]
    shares = [max(floor, int(quota)) for floor, quota in zip(floors, quotas, strict=True)]
    over = [share - quota for share, quota in zip(shares, quotas, strict=True)]
    while (difference := total - sum(shares)) != 0:
        if difference > 0:
            i = min(range(len(over)), key=over.__getitem__)
        else:
            i = max(_reducible(shares, floors), key=over.__getitem__)
        shares[i] += 1 if difference > 0 else -1
        over[i] += 1 if difference > 0 else -1
    return shares


def _reducible(shares: list[int], floors: list[int]) -> list[int]:
    """Indices of shares that may lose one: those above their floor, else those above one."""
    above = [i for i, share in enumerate(shares) if share > floors[i]]
    return above or [i for i, share in enumerate(shares) if share > 1]


def exclusive_bins(demands: Mapping[int, float], num_instances: int) -> list[Bin]:
    """One bin for each version; while there are more than instances, the two smallest neighbours merge."""
    bins: list[Bin] = [(version,) for version in sorted(demands)]
    while len(bins) > max(1, num_instances):
        sizes = [_demand(a, demands) + _demand(b, demands) for a, b in pairwise(bins)]
        bins = _merge(bins, sizes.index(min(sizes)))
    return bins


def merged_bins(
    demands: Mapping[int, float], num_instances: int, may_share: Callable[[Bin, float], bool]
) -> list[Bin]:
    """Merge neighbouring versions wherever one instance can serve both.

    `may_share(versions, quota)` is asked with the part of one instance that the merged bin needs;
    it knows memory and deadlines.
    """
    bins = exclusive_bins(demands, num_instances)
    per_instance = sum(demands.values()) / num_instances or 1.0
    i = 0
    while i + 1 < len(bins):
        together = bins[i] + bins[i + 1]
        if may_share(together, _demand(together, demands) / per_instance):
            bins = _merge(bins, i)
        else:
            i += 1
    return bins


def _demand(versions: Bin, demands: Mapping[int, float]) -> float:
    return sum(demands[version] for version in versions)


def _merge(bins: list[Bin], i: int) -> list[Bin]:
    return [*bins[:i], bins[i] + bins[i + 1], *bins[i + 2 :]]
