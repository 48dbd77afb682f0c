"""Runs that are only predicted: simulated in virtual time, or planned as the best way to divide a cluster."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dora_rl.core.recipe import Recipe
from dora_rl.core.recipe.aliases import translated
from dora_rl.core.recipe.resolution import Base
from dora_rl.core.struct_loader import to_dict
from dora_rl.sim.plan.refine import ClusterPlan, make_plan
from dora_rl.sim.simulated_run import Result
from dora_rl.sim.simulated_run import simulate as _simulate
from dora_rl.sim.simulation_setup import complete, resolve

CHOSEN = {
    "control.schedule": "dora",
    "control.active_groups": None,
    "control.redundant_groups": 0,
    "control.redundant_members": 0,
    "cluster.rollout_gpus": None,
    "cluster.elastic_gpus": 0,
    "cluster.tensor_parallel": None,
}
"""Keys of a recipe that the planner chooses, unless a call fixes them."""


def simulate(recipe: Base = None, *, preset: str | None = None, **settings: Any) -> Result:
    """Run a set-up under virtual time: the control plane of a live run, cost models instead of devices.

    >>> result = simulate(preset="paper-128", schedule="dora", max_staleness=3)
    >>> result.step_time_s, result.staleness_mean
    (384.1, 1.59)
    """
    return _simulate(complete(_resolved(recipe, preset, settings)))


def plan(recipe: Base = None, *, preset: str | None = None, **settings: Any) -> ClusterPlan:
    """The best way to run on a cluster: split, tensor parallelism, S and R, and how much each matters.

    >>> plan(model="Qwen2.5-32B", gpus=128).recipe.cluster.rollout_gpus
    36
    """
    return make_plan(_resolved(recipe, preset, CHOSEN | settings), lambda: None)


def _resolved(base: Base, preset: str | None, settings: Mapping[str, Any]) -> Recipe:
    values: dict[str, Any] = {}
    for name, value in settings.items():
        found = translated(name, value, settings)
        values |= {name: value} if found is None else found
    if isinstance(base, str | Path):
        return resolve(preset=preset, file=Path(base), values=values)
    tree = to_dict(base) if isinstance(base, Recipe) else dict(base or {})
    return resolve(preset=preset, tree=tree, values=values)
