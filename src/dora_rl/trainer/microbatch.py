"""Which trajectories go through the model together: whole ones, up to a number of tokens. Torch-free.

Micro-batches differ little in size, so that ranks which take one each finish together. The gradient does not
depend on any of this; only its order of summation does.
"""

from collections.abc import Sequence
from heapq import heapreplace
from math import ceil


def packed_into(lengths: Sequence[int], max_tokens: int, *, multiple: int = 1) -> list[list[int]]:
    """Indices of `lengths` in bins of at most `max_tokens`; a longer one has a bin to itself.

    As few bins as an even spread allows, a multiple of `multiple`; where there are fewer trajectories than
    that, some are empty. Indices are in order within a bin, and bins in the order of their first.
    """
    num_bins = _rounded_up(_fewest(lengths, max_tokens), multiple)
    while (bins := _spread(lengths, max_tokens, num_bins)) is None:
        num_bins += multiple
    return sorted((sorted(members) for members in bins), key=lambda members: members or [len(lengths)])


def _fewest(lengths: Sequence[int], max_tokens: int) -> int:
    """A lower bound on the number of bins: by the sum, and because no two long ones share a bin."""
    num_long = sum(2 * length > max_tokens for length in lengths)
    return max(1, num_long, ceil(sum(lengths) / max_tokens) if max(lengths, default=0) <= max_tokens else 1)


def _rounded_up(value: int, multiple: int) -> int:
    return ceil(value / multiple) * multiple


def _spread(lengths: Sequence[int], max_tokens: int, num_bins: int) -> list[list[int]] | None:
    """Put the longest that is left into the emptiest bin, and so on; None where a bin then holds too much."""
    bins: list[list[int]] = [[] for _ in range(num_bins)]
    emptiest = [(0, place) for place in range(num_bins)]
    for index in sorted(range(len(lengths)), key=lambda index: -lengths[index]):
        load, place = emptiest[0]
        if load and load + lengths[index] > max_tokens:
            return None
        bins[place].append(index)
        heapreplace(emptiest, (load + lengths[index], place))
    return bins
