"""Estimates for a simulated run: learned, the truth, or wrong by a factor of two."""

from dora_rl.control.estimates import Estimates, LearnedLengths
from dora_rl.control.fleet import Cohort
from dora_rl.core.recipe import Recipe
from dora_rl.costs.length_moments import moments, quantile
from dora_rl.costs.rollout import RolloutCost
from dora_rl.sim.futures import Futures

_BIAS = {"learned": 1.0, "oracle": 1.0, "half": 0.5, "double": 2.0}


class TrueLengths:
    """The length estimate of an oracle, which knows how long each running request will be."""

    def __init__(self, recipe: Recipe, futures: Futures) -> None:
        self._recipe = recipe
        self._moments = moments(recipe.task)
        self._futures = futures

    def observe(self, tokens: int) -> None:
        """Ignored: an oracle has nothing to learn."""

    def mean(self) -> float:
        return self._moments.mean

    def longest_of(self, count: int) -> float:
        return float(quantile(self._recipe.task.lengths, count / (count + 1)))

    def cohort_tokens(self, cohort: Cohort, clock: float) -> float:
        return self._futures.left(cohort, clock)


def make_estimates(recipe: Recipe, cost: RolloutCost, futures: Futures | None = None) -> Estimates:
    """The estimates control begins a simulated run with; an oracle needs the futures."""
    kind, m = recipe.simulation.estimates, moments(recipe.task)
    bias, most = _BIAS[kind], recipe.task.lengths.max_tokens
    assert kind != "oracle" or futures is not None, "an oracle must be told what will happen"
    learned = LearnedLengths(prior_tokens=most / 8, max_tokens=most, bias=bias)
    return Estimates(
        lengths=TrueLengths(recipe, futures) if kind == "oracle" and futures else learned,
        load_s=cost.load_s(1),
        move_s=cost.move_s(m.mean_context, same_node=False),
        step_s=cost.step_s(recipe.cluster.slots / 2, recipe.cluster.slots * m.mean / 2),
        bias=bias,
    )
