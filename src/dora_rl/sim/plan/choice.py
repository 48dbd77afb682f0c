"""A choice: the few numbers the planner decides, and a recipe with them filled in."""

from msgspec.structs import replace

from dora_rl.core.recipe import Recipe
from dora_rl.core.record import Record


class Choice(Record, frozen=True):
    """One way to run a recipe on its devices."""

    rollout_gpus: int
    """GPUs that generate; with `takes_turns` they also train."""
    tensor_parallel: int
    max_staleness: int
    active_groups: int | None = None
    """R; None leaves it to the controller."""
    takes_turns: bool = False
    """The generating GPUs are elastic: they train when a batch is ready."""

    def applied_to(self, recipe: Recipe) -> Recipe:
        cluster = replace(recipe.cluster, tensor_parallel=self.tensor_parallel)
        if not self.takes_turns:
            cluster = replace(cluster, rollout_gpus=self.rollout_gpus)
        elif not cluster.elastic_gpus:
            cluster = replace(cluster, elastic_gpus=self.rollout_gpus)
        control = replace(recipe.control, max_staleness=self.max_staleness, active_groups=self.active_groups)
        return replace(recipe, cluster=cluster, control=control)
