"""Study `scale`: does the algorithm hold its share of the limit from 64 to 16,384 GPUs?

The batch grows with the devices, four groups a GPU, so a perfect system's step time would not change.
"""

from dora_rl.core.recipe import Recipe
from dora_rl.core.record import Record
from dora_rl.sim.run import Result
from dora_rl.sim.setup import complete, resolve

MOST_GPUS = 16_384
_FEWEST_GPUS = 64
_GROUPS_A_GPU = 4
_FEWEST_STEPS = 10
_STEPS_SHRINK_ABOVE = 512
"""Larger runs have many more groups to average over, and take longer: fewer of their steps will do."""


class Row(Record, frozen=True):
    result: Result
    wall_s: float
    """Seconds that simulating it took."""


def sizes(most_gpus: int) -> list[int]:
    """Doublings from the smallest to the greatest asked for."""
    count = max(1, (most_gpus // _FEWEST_GPUS).bit_length())
    return [_FEWEST_GPUS * 2**i for i in range(count)]


def recipe(gpus: int, *, steps: int, seed: int) -> Recipe:
    enough = max(_FEWEST_STEPS, steps * _STEPS_SHRINK_ABOVE // gpus)
    asked = {
        "gpus": gpus,
        "batch.groups": _GROUPS_A_GPU * gpus,
        "rows": 8 * _GROUPS_A_GPU * gpus,
        "steps": min(steps, enough),
        "seed": seed,
    }
    return complete(resolve(preset="scale", assignments=[f"{key}={value}" for key, value in asked.items()]))
