"""Which trajectories go through the model together: whole ones, up to a number of tokens. Torch-free.

Micro-batches differ little in size, so that ranks which take one each finish together. The gradient does not
depend on any of this; only its order of summation does.
"""

from collections.abc import Sequence
from math import ceil


def packed_into(lengths: Sequence[int], max_tokens: int, *, multiple: int = 1) -> list[list[int]]:
    """Indices of `lengths` in bins of at most `max_tokens`; a longer one has a bin to itself.

    As few bins as longest-first filling finds, then a multiple of `multiple`; where there are fewer
    trajectories than that, some bins are empty. Within a bin, indices are in order.
    """
    num_bins = _rounded_up(max(len(_first_fit(lengths, max_tokens)), 1), multiple)
    while (bins := _balanced(lengths, max_tokens, num_bins)) is None:
        num_bins += multiple
    return [sorted(members) for members in bins]


def _rounded_up(value: int, multiple: int) -> int:
    return ceil(value / multiple) * multiple


def _longest_first(lengths: Sequence[int]) -> list[int]:
    return sorted(range(len(lengths)), key=lambda index: -lengths[index])


def _first_fit(lengths: Sequence[int], max_tokens: int) -> list[int]:
    """Tokens of each bin when the longest that is left goes into the first bin it fits."""
    loads: list[int] = []
    for index in _longest_first(lengths):
        place = next((i for i, load in enumerate(loads) if load + lengths[index] <= max_tokens), None)
        if place is None:
            loads.append(lengths[index])
        else:
            loads[place] += lengths[index]
    return loads


def _balanced(lengths: Sequence[int], max_tokens: int, num_bins: int) -> list[list[int]] | None:
    """The longest that is left goes into the emptiest bin; None where one then holds too much."""
    bins: list[list[int]] = [[] for _ in range(num_bins)]
    loads = [0] * num_bins
    for index in _longest_first(lengths):
        place = loads.index(min(loads))
        if loads[place] and loads[place] + lengths[index] > max_tokens:
            return None
        bins[place].append(index)
        loads[place] += lengths[index]
    return bins
