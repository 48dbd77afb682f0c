"""Assignment: which instance serves which bin, so that as much KV as possible stays where it is.

A transportation problem with few bins. Greedy by the KV kept is optimal while each instance holds one
bin's KV; where instances hold several, rounds of exchanges (a cycle of bins, each passing on the
instance that loses least) improve it until none is left, which is the optimum.
"""

from collections.abc import Mapping

from dora_rl.control.shares import Bin

Kept = Mapping[int, Mapping[Bin, float]]
"""Tokens of KV that would stay where they are, by instance and by the bin it would serve."""

_EPSILON = 1e-6


def assign(kept: Kept, shares: Mapping[Bin, int]) -> dict[int, Bin]:
    """Assign a bin to every instance: each bin gets exactly its share of them, and the most KV stays."""
    assignment = _greedily(kept, shares)
    if any(len(bins) > 1 for bins in kept.values()):
        while exchange := _exchange(kept, assignment, list(shares)):
            assignment |= exchange
    return assignment


def _greedily(kept: Kept, shares: Mapping[Bin, int]) -> dict[int, Bin]:
    left, assignment = dict(shares), dict[int, Bin]()
    claims = [(-tokens, instance, b) for instance, bins in kept.items() for b, tokens in bins.items()]
    for _, instance, b in sorted(claims):
        if instance not in assignment and left[b] > 0:
            assignment[instance] = b
            left[b] -= 1
    for instance in kept:
        if instance not in assignment:
            b = max(left, key=lambda b: (left[b], b))
            assignment[instance] = b
            left[b] -= 1
    return assignment


def _exchange(kept: Kept, assignment: Mapping[int, Bin], bins: list[Bin]) -> dict[int, Bin]:
    """Instances that should swap bins in a cycle, with their new bins; empty if no swap keeps more KV."""
    best = _best_changes(kept, assignment, bins)
    cycle = _winning_cycle({pair: gain for pair, (gain, _) in best.items()}, bins)
    return {best[a, b][1]: b for a, b in cycle}


def _best_changes(
    kept: Kept, assignment: Mapping[int, Bin], bins: list[Bin]
) -> dict[tuple[Bin, Bin], tuple[float, int]]:
    """For each pair of bins, the greatest gain in KV kept and the instance whose change makes it."""
    best: dict[tuple[Bin, Bin], tuple[float, int]] = {}
    for instance, now in assignment.items():
        here = kept[instance].get(now, 0.0)
        for then in bins:
            gain = kept[instance].get(then, 0.0) - here
            if then != now and gain > best.get((now, then), (float("-inf"), 0))[0]:
                best[now, then] = (gain, instance)
    return best


def _winning_cycle(gains: Mapping[tuple[Bin, Bin], float], bins: list[Bin]) -> list[tuple[Bin, Bin]]:
    """A cycle of bins whose gains sum above zero (Bellman and Ford), as pairs; empty if there is none."""
    reached = dict.fromkeys(bins, 0.0)
    came_from: dict[Bin, Bin] = {}
    last: Bin | None = None
    for _ in bins:
        last = None
        for (a, b), gain in gains.items():
            if reached[a] + gain > reached[b] + _EPSILON:
                reached[b], came_from[b], last = reached[a] + gain, a, b
    if last is None:
        return []
    for _ in bins:
        last = came_from[last]
    cycle: list[tuple[Bin, Bin]] = []
    b = last
    while not cycle or b != last:
        cycle.append((came_from[b], b))
        b = came_from[b]
    return cycle
