"""Study `staleness`: what the bound S and the number of active groups R do to step time and staleness.

S is only the hard bound; R sets the typical staleness and the throughput. The last column lets the
controller find R.
"""

from collections.abc import Sequence

from dora_rl.core.recipe import Recipe
from dora_rl.core.record import Record
from dora_rl.sim.run import Result
from dora_rl.sim.setup import complete, resolve

BOUNDS = (1, 2, 3, 4)
RATIOS = (1.25, 1.5, 2.0, 2.5, 3.0)


class Row(Record, frozen=True):
    max_staleness: int
    ratio: float | None
    """R / B; None where the controller found it."""
    result: Result


def grid() -> list[tuple[int, float | None]]:
    """Bounds and ratios that make sense together: more than S + 1 batches could never all be trained on."""
    return [
        (bound, ratio) for bound in BOUNDS for ratio in (*RATIOS, None) if ratio is None or ratio <= bound + 1
    ]


def recipes(preset: str, *, steps: int, seed: int) -> list[Recipe]:
    return [_recipe(preset, bound, ratio, steps, seed) for bound, ratio in grid()]


def rows(results: Sequence[Result]) -> list[Row]:
    return [
        Row(max_staleness=bound, ratio=ratio, result=result)
        for (bound, ratio), result in zip(grid(), results, strict=True)
    ]


def _recipe(preset: str, bound: int, ratio: float | None, steps: int, seed: int) -> Recipe:
    base = resolve(preset=preset)
    # The first version's stragglers hold up the batch that is their last: S + 1 steps fill the pipeline.
    warmup = min(max(base.simulation.warmup_steps, bound + 1), steps - 1)
    asked = {
        "control.schedule": "dora",
        "max_staleness": bound,
        "steps": steps,
        "seed": seed,
        "warmup_steps": warmup,
        "active_groups": "null" if ratio is None else round(ratio * base.batch.groups),
    }
    return complete(resolve(preset=preset, assignments=[f"{key}={value}" for key, value in asked.items()]))
