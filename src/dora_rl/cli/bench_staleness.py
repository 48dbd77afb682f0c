"""`dora bench staleness`: how each loss learns from batches of a forced staleness, in live runs."""

from pathlib import Path
from typing import Annotated

import typer

from dora_rl.cli.bench_trials import AtOnce, Json, Keep, Out, Recipe, Seeds, Sets, numbers, shared_machine


def staleness(
    losses: Annotated[
        str, typer.Option(help="Algorithms whose losses are compared, with commas.")
    ] = "grpo,tis,decoupled_ppo,cispo",
    staleness: Annotated[
        str, typer.Option("--staleness", help="How many versions old every batch is, with commas.")
    ] = "0,1,2,3,6",
    seeds: Seeds = "0,1,2",
    steps: Annotated[int, typer.Option(min=4, help="Train steps of each run.")] = 120,
    recipe: Recipe = "demo",
    sets: Sets = None,
    at_once: AtOnce = None,
    out: Out = Path("runs/bench-staleness"),
    keep: Keep = False,
    as_json: Json = False,
) -> None:
    """One recipe, batches that are exactly so many versions old: reward by step and by second for each loss.

    A run for each loss, staleness and seed. Only the loss is the named algorithm's, all else the recipe's.
    """
    import msgspec

    from dora_rl.bench.learning.grid_views import draw, flat, show
    from dora_rl.bench.learning.staleness_grid import GridScope, run_grid
    from dora_rl.observe.pictures.look import save
    from dora_rl.observe.tables import write_csv
    from dora_rl.observe.terminal import say, stdout

    processes, threads = shared_machine(at_once)
    scope = GridScope(
        recipe=recipe,
        assignments=(*threads, *(sets or ())),
        losses=tuple(name.strip() for name in losses.split(",")),
        staleness=numbers(staleness, int, "--staleness"),
        seeds=numbers(seeds, int, "--seeds"),
        steps=steps,
        directory=str((out / "runs").absolute()),
        keeps_runs=keep,
    )
    grid = run_grid(scope, at_once=processes, tell=say)
    if as_json:
        typer.echo(msgspec.json.format(msgspec.json.encode(grid)))
    else:
        stdout().print(show(grid))
    say(f"written: {write_csv(out / 'staleness.csv', [flat(each, grid.horizon_s) for each in grid.runs])}")
    say(f"written: {save(draw(grid), out / 'staleness.png')}")
    if grid.failed:
        raise typer.Exit(1)
