"""Fixed R beside the R that control finds, in live runs: seconds a step against mean staleness.

What control promises is judged here: its mean staleness against that of the freshest fixed R that is nearly
as fast as the fastest.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean, median

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from rich.table import Table

from dora_rl.bench.learning.live_trials import LiveTrial, TrialRun, run_trials
from dora_rl.core.recipe.resolution import resolve_recipe
from dora_rl.core.record import Record
from dora_rl.observe.pictures.look import BLUE, GREY, INK, ORANGE, figure, headline, plain
from dora_rl.observe.tables import table

NEARLY = 0.98
"""Share of the greatest speed at which a fixed R counts as fast."""


class TargetScope(Record, frozen=True):
    """Which levels of R are compared, with which seeds, and on what."""

    recipe: str
    assignments: tuple[str, ...]
    ratios: tuple[float, ...]
    """R / B of the fixed levels."""
    seeds: tuple[int, ...]
    steps: int
    directory: str
    keeps_runs: bool = False


class TargetLevel(Record, frozen=True):
    """The runs of all seeds at one R."""

    ratio: float | None
    """R / B; None where control finds R."""
    runs: tuple[TrialRun, ...]

    @property
    def step_s(self) -> float:
        return median(run.step_s for run in self.runs)

    @property
    def staleness_mean(self) -> float:
        return fmean(run.staleness_mean for run in self.runs)

    @property
    def staleness_least(self) -> float | None:
        known = [run.staleness_least for run in self.runs if run.staleness_least is not None]
        return fmean(known) if known else None

    @property
    def idle_versions(self) -> float:
        """Mean number of versions of a run that started no group."""
        return fmean(run.idle_versions for run in self.runs)


class TargetSweep(Record, frozen=True):
    """All levels of a sweep that came to their end, and where the found one stands."""

    title: str
    levels: tuple[TargetLevel, ...]
    failed: tuple[str, ...] = ()

    @property
    def fixed(self) -> list[TargetLevel]:
        return [level for level in self.levels if level.ratio is not None]

    @property
    def found(self) -> TargetLevel | None:
        return next((level for level in self.levels if level.ratio is None), None)

    @property
    def freshest_fast(self) -> TargetLevel:
        """The freshest fixed R that reaches 98 % of the speed of the fastest fixed one."""
        fastest_s = min(level.step_s for level in self.fixed)
        fast = [level for level in self.fixed if level.step_s * NEARLY <= fastest_s]
        return min(fast, key=lambda level: level.staleness_mean)

    @property
    def finding(self) -> str:
        best, found = self.freshest_fast, self.found
        said = f"freshest fixed R within {1 - NEARLY:.0%} of the fastest: {best.ratio:g} B, {_figures(best)}"
        if found is None:
            return said
        apart = found.staleness_mean - best.staleness_mean
        return f"{said}; found by control: {_figures(found)}, {apart:+.2f}"


def run_sweep(scope: TargetScope, *, at_once: int, tell: Callable[[str], None]) -> TargetSweep:
    """Run all levels for the first seed, then for the next: a disturbance hits all alike."""
    ratios = (*scope.ratios, None)
    trials = {(ratio, seed): _trial(scope, ratio, seed) for seed in scope.seeds for ratio in ratios}
    done = run_trials(list(trials.values()), at_once=at_once, tell=tell)
    levels = []
    for ratio in ratios:
        runs = tuple(run for seed in scope.seeds if (run := done.get(trials[ratio, seed].name)) is not None)
        if runs:
            levels.append(TargetLevel(ratio=ratio, runs=runs))
    batch = trials[None, scope.seeds[0]].recipe.batch
    return TargetSweep(
        title=f"{scope.recipe}, {batch.groups} groups of {batch.group_size}, {scope.steps} steps, "
        f"{len(scope.seeds)} seeds",
        levels=tuple(levels),
        failed=tuple(name for name, run in done.items() if run is None),
    )


def _trial(scope: TargetScope, ratio: float | None, seed: int) -> LiveTrial:
    name = f"{'found' if ratio is None else f'{ratio:g}'}-{seed}"
    fixed = (
        f"steps={scope.steps}",
        f"seed={seed}",
        "control.schedule=dora",
        "evaluation.every=0",
        f"checkpoints.every={scope.steps}",
        f"simulation.warmup_steps={max(2, scope.steps // 4)}",
    )
    recipe = resolve_recipe(scope.recipe, [*scope.assignments, *fixed, "control.active_groups=null"])
    if ratio is not None:
        groups = round(ratio * recipe.batch.groups)
        recipe = resolve_recipe(scope.recipe, [*scope.assignments, *fixed, f"control.active_groups={groups}"])
    directory = str(Path(scope.directory) / name)
    return LiveTrial(name=name, recipe=recipe, directory=directory, keeps_run=scope.keeps_runs)


def _figures(level: TargetLevel) -> str:
    return f"{level.step_s:.3f} s at a mean staleness of {level.staleness_mean:.2f}"


# --- views --------------------------------------------------------------------------------------


def show(sweep: TargetSweep) -> Table:
    made = table(
        sweep.title,
        ">R / B", ">step s", ">of the fastest", ">mean staleness", ">least", ">greatest", ">idle versions",
        caption=sweep.finding,
    )  # fmt: skip
    fastest_s = min(level.step_s for level in sweep.levels)
    for level in sweep.levels:
        least = level.staleness_least
        made.add_row(
            "found" if level.ratio is None else f"{level.ratio:g}",
            f"{level.step_s:.3f}",
            f"{fastest_s / level.step_s:.1%}",
            f"{level.staleness_mean:.2f}",
            "-" if least is None else f"{least:.2f}",
            str(max(run.staleness_max for run in level.runs)),
            f"{level.idle_versions:.1f}",
        )
    return made


def draw(sweep: TargetSweep) -> Figure:
    """Seconds a step against mean staleness, every run a dot, every level a line between its means."""
    fig = figure(8, 5)
    headline(fig, "Seconds a step against the mean staleness they cost: lower left is better", sweep.title)
    axes = fig.subplots()
    plain(axes, x="mean staleness of what is trained on", y="seconds a step")
    _scatter(axes, [run for level in sweep.fixed for run in level.runs], GREY)
    means = [(level.staleness_mean, level.step_s) for level in sweep.fixed]
    axes.plot(*zip(*means, strict=True), color=BLUE, marker="o", markersize=5, label="fixed R")
    for level, at in zip(sweep.fixed, means, strict=True):
        axes.annotate(f"{level.ratio:g} B", at, (5, 5), textcoords="offset points", fontsize=8, color=INK)
    if sweep.found is not None:
        _scatter(axes, sweep.found.runs, ORANGE)
        axes.plot(sweep.found.staleness_mean, sweep.found.step_s, color=ORANGE, marker="D", markersize=9,
                  linestyle="none", label="found by control")  # fmt: skip
    axes.set_ylim(bottom=0)
    axes.legend(fontsize=9, frameon=False)
    return fig


def _scatter(axes: Axes, runs: Sequence[TrialRun], colour: str) -> None:
    axes.plot([run.staleness_mean for run in runs], [run.step_s for run in runs], color=colour, marker=".",
              linestyle="none")  # fmt: skip
