"""`dora plan`: model, GPUs, lengths and batch in; split, parallelism, S and R out."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from dora_rl.core.errors import ConfigError

_OPEN = (
    "control.schedule=dora",
    "active_groups=null",
    "redundant_groups=0",
    "redundant_members=0",
    "rollout_gpus=null",
    "elastic_gpus=0",
    "tensor_parallel=null",
)
"""Assignments that leave open what the planner chooses, whatever a preset or recipe says."""


def plan(
    recipe: Annotated[
        Path | None, typer.Argument(help="A recipe in YAML, or a shipped one's name, to start from.")
    ] = None,
    preset: Annotated[str | None, typer.Option(help="A named set-up to start from.")] = None,
    model: Annotated[
        str | None,
        typer.Option(
            help="A model the cost models know, such as Qwen2.5-32B, or a directory with a config.json."
        ),
    ] = None,
    gpu: Annotated[str | None, typer.Option(help="A GPU they know, such as H100.")] = None,
    gpus: Annotated[int | None, typer.Option(help="How many of them.")] = None,
    groups: Annotated[int | None, typer.Option(help="Groups a train step takes (B).")] = None,
    group_size: Annotated[int | None, typer.Option(help="Trajectories of a group (G).")] = None,
    prompt_tokens: Annotated[int | None, typer.Option(help="Mean length of a prompt.")] = None,
    lengths: Annotated[
        str | None,
        typer.Option(
            help="Of responses: a JSON file with a list of them, or MEDIAN:SIGMA:MAX of a lognormal."
        ),
    ] = None,
    max_staleness: Annotated[int | None, typer.Option(help="The greatest S to consider.")] = None,
    sets: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change or fix any other value.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")] = False,
) -> None:
    """The best way to run on a cluster: split, tensor parallelism, S and R, and how much each matters.

    What it chooses may also be fixed: --set tensor_parallel=4.
    """
    options = {
        "model": model,
        "cluster.gpu": gpu,
        "cluster.gpus": gpus,
        "batch.groups": groups,
        "batch.group_size": group_size,
        "task.prompt_tokens": prompt_tokens,
        "control.max_staleness": max_staleness,
    }
    assignments = [f"{key}={value}" for key, value in options.items() if value is not None]
    _print_plan(recipe, preset, [*assignments, *(sets or [])], lengths, as_json=as_json)


def _print_plan(
    file: Path | None,
    preset: str | None,
    assignments: Sequence[str],
    lengths: str | None,
    *,
    as_json: bool,
) -> None:
    from dora_rl.observe.plan_view import as_json as plan_as_json
    from dora_rl.observe.plan_view import show
    from dora_rl.observe.terminal import progress, stdout
    from dora_rl.sim.plan.refine import MOST_TRIALS, make_plan
    from dora_rl.sim.simulation_setup import resolve

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
