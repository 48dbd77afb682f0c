"""A choice: the few numbers the planner decides, and the recipe with them filled in."""

from msgspec.structs import replace

from dora_rl.core.recipe import Recipe
from dora_rl.core.record import Record

_ENOUGH_TRAJECTORIES = 49_152
_FEWEST_STEPS, _MOST_STEPS = 6, 40


class Choice(Record, frozen=True):
    """One way to run a recipe on its devices: split, tensor parallelism, S and R."""

    rollout_gpus: int
    """GPUs that generate; with `takes_turns` they also train."""
    tensor_parallel: int
    max_staleness: int
    active_groups: int | None = None
    """Target number of active groups, R; None leaves it to the controller."""
    takes_turns: bool = False
    """Whether the generating GPUs are elastic: they train when a batch is ready."""

    @property
    def division(self) -> tuple[int, int]:
        return self.rollout_gpus, self.tensor_parallel

    def applied_to(self, recipe: Recipe) -> Recipe:
        """The recipe with this choice filled in."""
        cluster = replace(recipe.cluster, tensor_parallel=self.tensor_parallel)
        if not self.takes_turns:
            cluster = replace(cluster, rollout_gpus=self.rollout_gpus)
        elif not cluster.elastic_gpus:
            whole = self.rollout_gpus // self.tensor_parallel * self.tensor_parallel
            cluster = replace(cluster, elastic_gpus=whole)
        control = replace(recipe.control, max_staleness=self.max_staleness, active_groups=self.active_groups)
        return replace(recipe, cluster=cluster, control=control)


def trial_of(recipe: Recipe, choice: Choice) -> Recipe:
    """The recipe of a run that is long enough to judge a choice by.

    The measured steps begin after S + 1 others, when the first version's stragglers are through, and as many
    again: for so long a run may live on what it finished while it waited for those.
    """
    warmup = 2 * (choice.max_staleness + 1)
    measured = min(_MOST_STEPS, max(_FEWEST_STEPS, _ENOUGH_TRAJECTORIES // recipe.batch.trajectories))
    simulation = replace(recipe.simulation, warmup_steps=warmup)
    return replace(choice.applied_to(recipe), simulation=simulation, steps=warmup + measured)
