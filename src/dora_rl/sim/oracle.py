"""Estimates for a simulated run: learned, the truth, or wrong by a factor of two."""

from dora_rl.control.estimates import Estimates, LearnedLengths
from dora_rl.control.fleet import Lane
from dora_rl.core.recipe import Recipe
from dora_rl.costs.lengths import moments, quantile
from dora_rl.costs.rollout import RolloutCost

_BIAS = {"learned": 1.0, "oracle": 1.0, "half": 0.5, "double": 2.0}


class TrueLengths:
    """The oracle: knows how long each running request will be."""

    def __init__(self, recipe: Recipe) -> None:
        self._recipe = recipe
        self._moments = moments(recipe.task)
        self.tokens_of: dict[int, int] = {}
        """Total tokens of each trajectory, filled in by the world."""

    def observe(self, tokens: int) -> None:
        """There is nothing to learn."""

    def mean(self) -> float:
        return self._moments.mean

    def longest_of(self, count: int) -> float:
        return float(quantile(self._recipe.task.lengths, count / (count + 1)))

    def lane_tokens(self, lane: Lane, clock: float) -> float:
        total = self.tokens_of
        return sum(max(1.0, total.get(t.id, t.tokens) - (clock - t.offset)) for t in lane.running.values())


def make_estimates(recipe: Recipe, cost: RolloutCost) -> Estimates:
    """What control believes when the run begins, and whether it can learn better."""
    kind, m = recipe.simulation.estimates, moments(recipe.task)
    bias = _BIAS[kind]
    lengths = (
        TrueLengths(recipe)
        if kind == "oracle"
        else LearnedLengths(
            prior_tokens=recipe.task.lengths.max_tokens / 8, max_tokens=recipe.task.lengths.max_tokens, bias=bias
        )
    )
    return Estimates(
        lengths=lengths,
        load_s=cost.load_s(1),
        move_s=cost.move_s(m.mean_context, same_node=False),
        step_s=cost.step_s(recipe.cluster.slots / 2, recipe.cluster.slots * m.mean / 2),
        bias=bias,
    )
