"""What a live run's work costs on this machine, fitted to the run's own event log.

Fitted to a synchronous run, in which nothing disturbs anything else: decoding, training and publishing have
the machine to themselves, each in its turn.
"""

from collections.abc import Sequence
from itertools import combinations
from statistics import fmean

import numpy as np

from dora_rl.bench.schedules.spans import LogFacts
from dora_rl.core.errors import UserError
from dora_rl.core.record import Record


class MeasuredCosts(Record, frozen=True):
    """The costs of the parts of a live run on this machine, in seconds."""

    round_s: float
    """Seconds of a decode round, whatever decodes; once for each version."""
    row_s: float
    """Further seconds of a decode round for each request in it."""
    kv_token_s: float
    """Further seconds of a decode round for each token of KV it reads."""
    start_s: float
    """Seconds to start a request."""
    train_fixed_s: float
    """Seconds of a train step, however large it is."""
    train_token_s: float
    publish_s: float
    """Seconds from the end of training until control knows that the version is published."""
    load_s: float
    """Seconds from the decision to load a version until control knows that it is served."""
    score_s: float
    """Seconds from the end of a trajectory until its reward is known."""
    switch_s: float
    """Seconds from the end of a step until a paused instance generates."""


def measured_costs(facts: LogFacts) -> MeasuredCosts:
    """Fit the costs to one run, without its first step, which warms up."""
    if len(facts.steps) < 3:
        raise UserError(
            f"costs cannot be fitted to a run of {len(facts.steps)} steps", hint="run at least three"
        )
    warm_at = facts.steps[0].published_at
    round_s, row_s, kv_token_s, start_s = _decoding(facts, warm_at)
    steps = facts.steps[1:]
    fixed_s, token_s = fit_costs([(1.0, step.tokens) for step in steps], [step.train_s for step in steps])
    return MeasuredCosts(
        round_s=round_s,
        row_s=row_s,
        kv_token_s=kv_token_s,
        start_s=start_s,
        train_fixed_s=fixed_s,
        train_token_s=token_s,
        publish_s=fmean(step.published_at - step.taken_at - step.train_s for step in steps),
        load_s=_mean(facts.loads_s),
        score_s=_mean(facts.scores_s),
        switch_s=_mean(facts.switches_s),
    )


def _decoding(facts: LogFacts, warm_at: float) -> tuple[float, ...]:
    spans = [each for each in facts.decodings if each.at > warm_at]
    features = [(s.rounds, s.row_rounds, s.kv_token_rounds, float(s.starts)) for s in spans]
    return fit_costs(features, [each.seconds for each in spans])


def _mean(values: list[float]) -> float:
    return fmean(values) if values else 0.0


def fit_costs(features: Sequence[Sequence[float]], seconds: Sequence[float]) -> tuple[float, ...]:
    """Fit the seconds of one unit of each feature.

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
