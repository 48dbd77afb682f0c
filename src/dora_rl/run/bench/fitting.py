"""Least squares whose coefficients are costs: none is negative, and together they cost what was measured."""

from collections.abc import Sequence
from itertools import combinations

import numpy as np


def fit_costs(features: Sequence[Sequence[float]], seconds: Sequence[float]) -> tuple[float, ...]:
    """Seconds of one unit of each feature.

    The best fit among all sets of features whose coefficients come out positive, scaled so that the whole
    takes as long as it took. There are few features, so every set is tried.
    """
    assert features, "nothing was measured"
    matrix, target = np.array(features, dtype=float), np.array(seconds, dtype=float)
    best, least = np.zeros(matrix.shape[1]), float(target @ target)
    for chosen in _subsets(matrix.shape[1]):
        found, *_ = np.linalg.lstsq(matrix[:, chosen], target, rcond=None)
        error = matrix[:, chosen] @ found - target
        if (found > 0).all() and float(error @ error) < least:
            best, least = np.zeros(matrix.shape[1]), float(error @ error)
            best[list(chosen)] = found
    total = float((matrix @ best).sum())
    scale = float(target.sum()) / total if total else 0.0
    return tuple(float(cost) * scale for cost in best)


def _subsets(count: int) -> list[tuple[int, ...]]:
    return [chosen for size in range(1, count + 1) for chosen in combinations(range(count), size)]
