"""What `dora simulate study` does: make recipes, run them, show what they say, write it down."""

from collections.abc import Callable, Sequence
from pathlib import Path
from time import perf_counter
from typing import TypeVar

import typer
from matplotlib.figure import Figure
from rich.console import RenderableType

from dora_rl.bench.studies import ablation, episodes, paper, peers, scale, staleness, window_readings
from dora_rl.core.recipe import Recipe
from dora_rl.observe.pictures.look import save
from dora_rl.observe.tables import Cell, write_csv
from dora_rl.observe.terminal import progress, say, stdout
from dora_rl.sim.simulated_run import simulate
from dora_rl.sim.sweep import sweep, trajectories

T = TypeVar("T")


def study_paper(out: Path, *, steps: int, seed: int) -> None:
    done = _run(paper.accounted, paper.recipes(steps=steps, seed=seed), "study paper")
    results, seconds = [result for result, _ in done], [run for _, run in done]
    rows = paper.rows(results)
    shown = paper.shown_recipes(seed=seed)
    timelines = _run(paper.trace, shown, "timelines")
    pictures = {
        "paper": paper.draw_bars(rows),
        "seconds": paper.draw_seconds(results, seconds),
        "timeline": paper.draw_shown(shown, timelines),
    }
    _leave_behind(out, "paper", paper.show(rows), [paper.flat(row) for row in rows], pictures)
    readings = _run(simulate, window_readings.recipes(steps=steps, seed=seed), "what K means")
    told = [window_readings.flat(result) for result in readings]
    _leave_behind(out, "window_readings", window_readings.show(readings), told, {})


def study_scale(out: Path, *, steps: int, seed: int, max_gpus: int) -> None:
    """Run the study `scale`, one run after the other: their duration is part of the result."""
    recipes = [scale.recipe(gpus, steps=steps, seed=seed) for gpus in scale.sizes(max_gpus)]
    work = sum(trajectories(recipe) for recipe in recipes)
    say(
        f"{work:,} trajectories to simulate, half of them at the greatest size: some {work / 2e6:.0f} minutes"
    )
    rows = []
    with progress("study scale", len(recipes)) as advance:
        for recipe in recipes:
            began = perf_counter()
            rows.append(scale.ScaleRow(result=simulate(recipe), wall_s=perf_counter() - began))
            advance(f"({recipe.cluster.gpus:,} GPUs done)")
    shown = [scale.flat(row) for row in rows]
    _leave_behind(out, "scale", scale.show(rows), shown, {"scale": scale.draw(rows)})


def study_staleness(out: Path, preset: str, *, steps: int, seed: int) -> None:
    recipes = staleness.recipes(preset, steps=steps, seed=seed)
    rows = staleness.rows(_run(simulate, recipes, "study staleness"))
    flat = [staleness.flat(row) for row in rows]
    _leave_behind(out, "staleness", staleness.show(rows), flat, {"staleness": staleness.draw(rows)})


def study_ablation(out: Path, preset: str, *, steps: int, seed: int) -> None:
    recipes = ablation.recipes(preset, steps=steps, seed=seed)
    rows = ablation.rows(recipes, _run(simulate, recipes, "study ablation"))
    flat = [line for row in rows for line in ablation.flat(row)]
    _leave_behind(out, "ablation", ablation.show(rows), flat, {"ablation": ablation.draw(rows)})


def study_episodes(out: Path, *, steps: int, seed: int) -> None:
    rows = episodes.rows(_run(simulate, episodes.recipes(steps=steps, seed=seed), "study episodes"))
    flat = [episodes.flat(row) for row in rows]
    _leave_behind(out, "episodes", episodes.show(rows), flat, {"episodes": episodes.draw(rows)})


def study_peers(out: Path, preset: str, *, steps: int, seed: int, assignments: Sequence[str] = ()) -> None:
    """Run the study `peers`: each round of trials follows from what those before it gave."""
    trials = peers.first_trials(preset, steps=steps, seed=seed, assignments=assignments)
    runs = _run(peers.measure, [trial.recipe for trial in trials], "study peers: best splits")
    for find, what in ((peers.other_splits, "other splits"), (peers.later_trials, "active groups")):
        later = find(trials, runs)
        runs += _run(peers.measure, [trial.recipe for trial in later], f"study peers: {what}")
        trials += later
    rows = peers.rows(trials, runs)
    flat = [peers.flat(row) for row in rows]
    _leave_behind(out, "peers", peers.show(rows), flat, {"peers": peers.draw(rows)})


def _run(job: Callable[[Recipe], T], recipes: Sequence[Recipe], what: str) -> list[T]:
    with progress(what, len(recipes)) as advance:
        return sweep(job, recipes, lambda: advance(""))


def _leave_behind(
    out: Path,
    name: str,
    table: RenderableType,
    rows: Sequence[dict[str, Cell]],
    pictures: dict[str, Figure],
) -> None:
    """Print the table, write CSV and pictures, and say where they are."""
    stdout().print(table)
    typer.echo(write_csv(out / f"{name}.csv", rows))
    for picture, figure in pictures.items():
        typer.echo(save(figure, out / f"{picture}.png"))
