"""The mean of each reward function over trajectories: one that is hacked must not hide behind the sum."""

from collections.abc import Iterable, Mapping
from statistics import fmean


def mean_by_function(values: Iterable[Mapping[str, float | None]]) -> dict[str, float]:
    """The mean value of each reward function over the trajectories it applied to, by name.

    One mapping a trajectory: the function's value by its name, None where it did not apply.
    """
    found: dict[str, list[float]] = {}
    for each in values:
        for name, value in each.items():
            if value is not None:
                found.setdefault(name, []).append(value)
    return {name: fmean(own) for name, own in found.items()}
