"""`dora bench freshness`: fixed numbers of active groups beside the one that control finds, in live runs."""

from pathlib import Path
from typing import Annotated

import typer

from dora_rl.cli.bench_trials import AtOnce, Json, Keep, Out, Recipe, Seeds, Sets, numbers, shared_machine


def freshness(
    ratios: Annotated[
        str, typer.Option(help="Fixed numbers of active groups, in batches (R / B), with commas.")
    ] = "1,1.25,1.5,2,3",
    seeds: Seeds = "0,1,2",
    steps: Annotated[int, typer.Option(min=8, help="Train steps of each run.")] = 80,
    recipe: Recipe = "demo",
    sets: Sets = None,
    at_once: AtOnce = 1,
    out: Out = Path("runs/bench-freshness"),
    keep: Keep = False,
    as_json: Json = False,
) -> None:
    """One recipe at several fixed R, and at the R that control finds: seconds a step against staleness.

    One run after the other unless --at-once says otherwise: it is their speed that is compared.
    """
    import msgspec

    from dora_rl.bench.learning.target_sweep import TargetScope, draw, run_sweep, show
    from dora_rl.observe.pictures.look import save
    from dora_rl.observe.terminal import say, stdout

    processes, threads = shared_machine(at_once)
    scope = TargetScope(
        recipe=recipe,
        assignments=(*threads, *(sets or ())),
        ratios=numbers(ratios, float, "--ratios"),
        seeds=numbers(seeds, int, "--seeds"),
        steps=steps,
        directory=str((out / "runs").absolute()),
        keeps_runs=keep,
    )
    sweep = run_sweep(scope, at_once=processes, tell=say)
    if as_json:
        typer.echo(msgspec.json.format(msgspec.json.encode(sweep)))
    else:
        stdout().print(show(sweep))
    say(f"written: {save(draw(sweep), out / 'freshness.png')}")
    if sweep.failed:
        raise typer.Exit(1)
