"""What the paper's K = 3 means for S: a window of K versions (S = K - 1), or at most K versions old (S = K).

Part of the study `paper`: its DORA at both readings, all else equal, beside what it reports.
"""

from collections.abc import Sequence

from rich.table import Table

from dora_rl.bench.studies.paper import PUBLISHED, SIZES
from dora_rl.core.recipe import Recipe
from dora_rl.core.struct_loader import to_dict
from dora_rl.observe.tables import Cell, table
from dora_rl.sim.simulated_run import Result
from dora_rl.sim.simulation_setup import complete, resolve

K = 3
_READINGS = {K - 1: "K versions in the window", K: "at most K versions old"}
_STALENESS = 0.95
"""The paper's mean staleness at K = 3."""


def recipes(*, steps: int, seed: int) -> list[Recipe]:
    """The paper's DORA at both bounds and both sizes."""
    return [_recipe(bound, gpus, steps, seed) for gpus in SIZES for bound in _READINGS]


def _recipe(bound: int, gpus: int, steps: int, seed: int) -> Recipe:
    asked = ["control.schedule=dora_onset", f"max_staleness={bound}", f"steps={steps}", f"seed={seed}"]
    return complete(resolve(preset=f"paper-{gpus}", assignments=asked))


def show(results: Sequence[Result]) -> Table:
    columns = (
        ">step s",
        ">paper",
        ">deviation",
        ">rollout only",
        ">paper",
        ">mean staleness",
        ">paper",
        ">greatest",
    )
    made = table("What K = 3 means: the paper's DORA at both readings", ">GPUs", ">S", "reading", *columns)
    for r in results:
        cell = PUBLISHED[("dora_onset", r.gpus)]
        made.add_row(
            str(r.gpus),
            str(r.max_staleness),
            _READINGS[r.max_staleness],
            f"{r.step_time_s:,.0f}",
            f"{cell.step_s:,.0f}",
            f"{r.step_time_s / cell.step_s - 1.0:+.1%}",
            f"{r.rollout_only_fraction:.0%}",
            f"{cell.rollout_only:.0%}",
            f"{r.staleness_mean:.2f}",
            f"{_STALENESS:.2f}",
            str(r.staleness_max),
            end_section=r.max_staleness == K,
        )
    return made


def flat(result: Result) -> dict[str, Cell]:
    return {"reading": _READINGS[result.max_staleness], **to_dict(result)}
