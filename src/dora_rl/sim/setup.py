"""Set-ups: a preset, a recipe file and overrides become one recipe with nothing left open.

Later ones win: defaults, preset, what the preset adds for the schedule, file, overrides. What is still
open then, the split of the devices, the planner fills in.
"""

from collections.abc import Sequence
from pathlib import Path

from dora_rl.control.schedules import make_schedule
from dora_rl.core.loading import Tree, build, load_yaml, override
from dora_rl.core.recipe import Control, Recipe
from dora_rl.core.recipe.resolving import expand, laid_over, with_preset_keys
from dora_rl.costs.memory import check_memory
from dora_rl.sim.plan.search import decide
from dora_rl.sim.presets import Preset, find_preset

_NO_PRESET = Preset(summary="the defaults", tree={})


def resolve(
    *, preset: str | None = None, file: Path | None = None, assignments: Sequence[str] = ()
) -> Recipe:
    """The recipe a user describes; its split may still be open."""
    base = find_preset(preset) if preset else _NO_PRESET
    given = with_preset_keys(load_yaml(file)) if file else {}
    schedule = _schedule(override(laid_over(base.tree, given), assignments, Recipe))
    tree = laid_over(laid_over(base.tree, base.by_schedule.get(schedule, {})), given)
    source = str(file) if file else f"preset {preset}" if preset else "recipe"
    return build(Recipe, expand(override(tree, assignments, Recipe)), source)


def complete(recipe: Recipe) -> Recipe:
    """The recipe with its split decided, checked against the memory there is."""
    decided = decide(recipe)
    check_memory(decided, num_versions=make_schedule(decided.control, decided.batch).max_staleness + 1)
    return decided


def _schedule(tree: Tree) -> str:
    """The schedule a tree asks for. Whether it exists is checked when the recipe is built."""
    control = tree.get("control")
    name = control.get("schedule") if isinstance(control, dict) else None
    return str(name or Control().schedule)
