"""What `dora plan` does: resolve with everything open that it may choose, plan, show."""

import re
from collections.abc import Sequence
from pathlib import Path

import typer

from dora_rl.core.errors import ConfigError
from dora_rl.observe.plan_view import as_json as plan_as_json
from dora_rl.observe.plan_view import show
from dora_rl.observe.terminal import progress, stdout
from dora_rl.sim.plan.refine import MOST_TRIALS, make_plan
from dora_rl.sim.simulation_setup import resolve

_OPEN = (
    "control.schedule=dora",
    "active_groups=null",
    "rollout_gpus=null",
    "elastic_gpus=0",
    "tensor_parallel=null",
)
"""What a preset or a recipe says about these is for the planner to say."""


def print_plan(
    file: Path | None,
    preset: str | None,
    assignments: Sequence[str],
    lengths: str | None,
    *,
    as_json: bool,
) -> None:
    asked = [*_OPEN, *(_length_assignments(lengths) if lengths else ()), *assignments]
    recipe = resolve(preset=preset, file=file, assignments=asked)
    with progress("planning", MOST_TRIALS) as advance:
        plan = make_plan(recipe, lambda: advance(""))
    if as_json:
        typer.echo(plan_as_json(plan))
    else:
        show(stdout(), plan)


def _length_assignments(lengths: str) -> list[str]:
    number = r"(\d+(?:\.\d+)?)"
    if match := re.fullmatch(f"{number}:{number}:{number}", lengths):
        median, sigma, most = match.groups()
        return [
            "lengths.kind=lognormal",
            f"median_tokens={median}",
            f"sigma={sigma}",
            f"lengths.max_tokens={most}",
        ]
    if not Path(lengths).is_file():
        raise ConfigError(
            f"--lengths {lengths} is neither a file nor MEDIAN:SIGMA:MAX",
            hint="for example --lengths 1100:1.2:30000, or a JSON file such as [120, 512, 90]",
        )
    return ["lengths.kind=empirical", f"lengths.path={lengths}"]
