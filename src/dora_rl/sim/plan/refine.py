"""Refinement: the most promising choices are tried out, then the neighbours of the best one.

A large cluster is planned on a part of it: times depend on ratios, not on sizes.
"""

from collections.abc import Callable, Sequence
from math import gcd

from msgspec.structs import replace

from dora_rl.core.errors import ConfigError
from dora_rl.core.recipe import Recipe
from dora_rl.core.record import Record
from dora_rl.costs.gpu_memory import Memory, memory
from dora_rl.sim.plan.around import neighbours
from dora_rl.sim.plan.choice import trial_of
from dora_rl.sim.plan.search import Candidate, candidates
from dora_rl.sim.simulated_run import Result, simulate
from dora_rl.sim.sweep import sweep

_FINALISTS = 3
MOST_TRIALS = _FINALISTS + 2 + 9
"""Most simulations of a plan: finalists, the best one under two other bounds, and its neighbours."""
_ENOUGH_TRAJECTORIES = 16_384
_ENOUGH_GPUS = 128
_CLOSE = 1.02
"""Ratio of step times up to which choices are equal: the less stale one is then better."""


class Option(Record, frozen=True):
    """The result with another value of one choice, everything else as planned."""

    what: str
    value: str
    result: Result


class ClusterPlan(Record, frozen=True, gc=True):
    """How to run a recipe on a cluster: the best choice found, and what others would have given."""

    recipe: Recipe
    result: Result
    parts: int
    """Number of equal parts of the cluster, of one of which `recipe` and `result` are."""
    predicted_step_s: float
    memory: Memory
    options: tuple[Option, ...]


def make_plan(recipe: Recipe, done: Callable[[], None] = lambda: None) -> ClusterPlan:
    """Plan a recipe: search up to its bound S, simulate the finalists, choose, and vary each choice."""
    if recipe.control.max_staleness == 0:
        raise ConfigError(
            "control.max_staleness = 0 leaves nothing to plan: generating and training take turns",
            hint="allow at least 1",
        )
    parts = num_parts(recipe)
    part = _part_of(recipe, parts)
    finalists = _finalists(candidates(part, range(1, recipe.control.max_staleness + 1)))
    trials = [trial_of(part, finalist.choice) for finalist in finalists]
    results = dict(zip(trials, sweep(simulate, trials, done), strict=True))
    best, planned = _best(finalists, trials, results)
    around = list(neighbours(planned, best.choice, results[planned].active_groups))
    untried = [near.trial for near in around if near.trial not in results]
    results |= zip(untried, sweep(simulate, untried, done), strict=True)
    return ClusterPlan(
        recipe=planned,
        result=results[planned],
        parts=parts,
        predicted_step_s=best.prediction.step_s,
        memory=memory(planned, best.choice.tensor_parallel),
        options=tuple(Option(what=n.what, value=n.value, result=results[n.trial]) for n in around),
    )


def num_parts(recipe: Recipe) -> int:
    """Number of equal parts a cluster can be cut into, each still large enough to be like the whole."""
    gpus, groups = recipe.cluster.gpus, recipe.batch.groups
    parts, most = 1, gcd(gpus, groups)
    while (
        most % (2 * parts) == 0
        and gpus // (2 * parts) >= _ENOUGH_GPUS
        and recipe.batch.trajectories // parts > _ENOUGH_TRAJECTORIES
    ):
        parts *= 2
    return parts


def _part_of(recipe: Recipe, parts: int) -> Recipe:
    c = recipe.cluster
    cluster = replace(c, gpus=c.gpus // parts, rollout_gpus=c.rollout_gpus and c.rollout_gpus // parts)
    batch = replace(recipe.batch, groups=recipe.batch.groups // parts)
    # What is trained on does not matter here, and its options would keep a recipe from being a key.
    return replace(recipe, cluster=cluster, batch=batch, data=None, rewards=(), episode=None, roles=None)


def _finalists(ranked: Sequence[Candidate]) -> list[Candidate]:
    """The best divisions of the devices, and the very best one under neighbouring bounds S too."""
    by_division: dict[tuple[int, int], Candidate] = {}
    for candidate in ranked:
        by_division.setdefault(candidate.choice.division, candidate)
    finalists = list(by_division.values())[:_FINALISTS]
    first = finalists[0].choice
    return finalists + [
        candidate
        for candidate in ranked
        if candidate.choice.division == first.division
        and abs(candidate.choice.max_staleness - first.max_staleness) == 1
    ]


def _best(
    finalists: Sequence[Candidate], trials: Sequence[Recipe], results: dict[Recipe, Result]
) -> tuple[Candidate, Recipe]:
    """The least stale of the fastest finalists, and its trial."""
    fastest_s = min(result.step_time_s for result in results.values())
    close = [
        (candidate, trial)
        for candidate, trial in zip(finalists, trials, strict=True)
        if results[trial].step_time_s <= _CLOSE * fastest_s
    ]
    return min(close, key=lambda pair: (pair[0].choice.max_staleness, results[pair[1]].staleness_mean))
