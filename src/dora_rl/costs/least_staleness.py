"""The least mean staleness that a run's own trace allows: what any order of its groups could have reached.

A group that takes `d` seconds and starts right after version `w` was published can be in batch `m` if the
time for generation between that publish and the moment batch `m` was taken is at least `d`. So its staleness
there is at least

    c(d, m) = m - max { w <= m : generation(p_w, t_m) >= d }

and the least mean is that of the cheapest assignment of the trained groups to the batches, `B` each: a
transport problem. Slots are unlimited and every group decodes at the fastest step time that was seen, so no
schedule on the same machines with the same publishes can go below it. Durations are put into classes and
rounded down, which keeps it a lower bound.
"""

from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence

_CELLS = 16384
"""Classes of durations times different batches that are looked at: more batches, fewer classes."""


def least_mean_staleness(
    durations_s: Sequence[float], published: Sequence[float], taken: Sequence[tuple[int, float]]
) -> float:
    """The least mean staleness of groups of these durations, in equal parts in the batches `taken`.

    `published[w]` is the generating time when version w was published, `taken` the number of each batch and
    the generating time when it was taken; time in which nothing could generate does not count.
    """
    ordered = sorted(durations_s)
    size = -(-len(ordered) // max(32, min(256, _CELLS // len(taken))))
    classes = [(ordered[i], len(ordered[i : i + size])) for i in range(0, len(ordered), size)]
    columns = Counter(
        tuple(_staleness(duration, batch, at, published) for duration, _ in classes) for batch, at in taken
    )
    per_batch = len(ordered) // len(taken)
    supply = [count for _, count in classes]
    demand = [count * per_batch for count in columns.values()]
    costs = [[column[k] for column in columns] for k in range(len(classes))]
    return _cheapest(supply, demand, costs) / sum(demand)


def _staleness(duration_s: float, batch: int, at: float, published: Sequence[float]) -> int:
    """Least staleness in one batch: versions published since the last one early enough for the duration."""
    early_enough = bisect_right(published, at - duration_s, hi=batch + 1)
    return batch - max(0, early_enough - 1)


def _cheapest(supply: list[int], demand: list[int], costs: list[list[int]]) -> int:
    """The cost of the cheapest transport from rows with a supply to columns with a demand.

    Shortest augmenting paths: each takes as much as fits along the cheapest way from a row with supply left
    to a column with demand left, over columns already served where that is cheaper. A way that is taken makes
    no other cheaper, so all the cheapest ones of one look are taken before the next.
    """
    supply, demand = list(supply), list(demand)
    flow = [[0] * len(demand) for _ in supply]
    total = 0
    while any(demand):
        distance, came_from = _distances(supply, demand, costs, flow)
        cheapest = min(distance[j] for j, left in enumerate(demand) if left)
        for column, left in enumerate(demand):
            if left and distance[column] == cheapest:
                amount = _taken(_way(column, came_from), left, supply, flow)
                total += amount * cheapest
                demand[column] -= amount
    return total


def _way(column: int, came_from: list[tuple[int, int]]) -> list[tuple[int, int, int]]:
    """The cheapest way to a column, from its end: rows, the column each goes to, and the one it leaves."""
    way = [(*came_from[column], column)]
    while (before := way[-1][1]) >= 0:
        way.append((*came_from[before], before))
    return [(row, to, before) for row, before, to in way]


def _taken(way: list[tuple[int, int, int]], most: int, supply: list[int], flow: list[list[int]]) -> int:
    """Move as much as fits along a way, at most so much; returns how much."""
    begin = way[-1][0]
    amount = min([most, supply[begin], *(flow[row][before] for row, _, before in way if before >= 0)])
    for row, to, before in way:
        flow[row][to] += amount
        if before >= 0:
            flow[row][before] -= amount
    supply[begin] -= amount
    return amount


def _distances(
    supply: list[int], demand: list[int], costs: list[list[int]], flow: list[list[int]]
) -> tuple[list[int], list[tuple[int, int]]]:
    """Cheapest way to each column, and the (row, column before) it comes by; -1 begins at a row's supply."""
    far = 1 << 60
    distance, came_from = [far] * len(demand), [(-1, -1)] * len(demand)
    best_row = [0 if left else far for left in supply]
    row_before = [-1] * len(supply)
    changed = {row for row, left in enumerate(supply) if left}
    while changed:
        touched: set[int] = set()
        for row in changed:
            base = best_row[row]
            for j, cost in enumerate(costs[row]):
                if base + cost < distance[j]:
                    distance[j], came_from[j] = base + cost, (row, row_before[row])
                    touched.add(j)
        changed = set()
        for j in touched:
            for row, served in enumerate(flow):
                if served[j] and distance[j] - costs[row][j] < best_row[row]:
                    best_row[row], row_before[row] = distance[j] - costs[row][j], j
                    changed.add(row)
    return distance, came_from
