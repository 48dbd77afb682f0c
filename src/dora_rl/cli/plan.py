"""`dora plan`: model, GPUs, lengths and batch in; split, parallelism, S and R out."""

from pathlib import Path
from typing import Annotated

import typer


def plan(
    recipe: Annotated[Path | None, typer.Argument(help="A recipe in YAML to start from.")] = None,
    preset: Annotated[str | None, typer.Option(help="A named set-up to start from.")] = None,
    model: Annotated[
        str | None, typer.Option(help="A model the cost models know, such as Qwen2.5-32B.")
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
    max_staleness: Annotated[
        int | None, typer.Option(min=1, help="Keep S at this value instead of looking for the best.")
    ] = None,
    sets: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change or fix any other value.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")] = False,
) -> None:
    """The best way to run on a cluster: split, tensor parallelism, S and R, and how much each matters.

    What it chooses may also be fixed: --set tensor_parallel=4.
    """
    from dora_rl.cli.planning import print_plan

    options = {
        "model": model,
        "cluster.gpu": gpu,
        "cluster.gpus": gpus,
        "batch.groups": groups,
        "batch.group_size": group_size,
        "task.prompt_tokens": prompt_tokens,
    }
    assignments = [f"{key}={value}" for key, value in options.items() if value is not None]
    print_plan(recipe, preset, [*assignments, *(sets or [])], lengths, max_staleness, as_json=as_json)
