"""How each loss learns at each staleness: the same recipe, its batches forced to be exactly so old.

The schedule is `steps_off`: batch m is of version m - k and of no other, on the live control plane. Only the
loss is taken from an algorithm's preset; advantages and aggregation stay those of the recipe, so that what
differs is the loss and nothing else.
"""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import fmean

from msgspec.structs import replace

from dora_rl.bench.learning.live_trials import LiveTrial, TrialRun, run_trials
from dora_rl.core.recipe.presets import preset
from dora_rl.core.recipe.resolution import resolve_recipe
from dora_rl.core.record import Record


class GridScope(Record, frozen=True):
    """Which losses, staleness and seeds are compared, and on what."""

    recipe: str
    assignments: tuple[str, ...]
    losses: tuple[str, ...]
    """Names of algorithms whose losses are compared."""
    staleness: tuple[int, ...]
    seeds: tuple[int, ...]
    steps: int
    directory: str
    keeps_runs: bool = False


class GridRun(Record, frozen=True):
    """One run of the grid: a loss at a staleness with a seed."""

    loss: str
    staleness: int
    seed: int
    run: TrialRun

    @property
    def gain(self) -> tuple[float, float] | None:
        """Held-out reward before and after; None without evaluations of both."""
        held_out = self.run.held_out
        return (held_out[0][1], held_out[-1][1]) if len(held_out) > 1 else None

    @property
    def reward_by_step(self) -> float:
        """Area under the reward curve over the steps: the mean of all batches."""
        return fmean(self.run.rewards)

    def reward_by_second(self, horizon_s: float) -> float:
        """Area under the reward curve over the first `horizon_s` seconds, divided by them."""
        rewards, at = self.run.rewards, self.run.published_s
        spans = zip(rewards[1:], at, at[1:], strict=False)
        return sum(r * max(0.0, min(end, horizon_s) - begin) for r, begin, end in spans) / horizon_s


class GridCell(Record, frozen=True):
    """All seeds of one loss at one staleness."""

    loss: str
    staleness: int
    runs: tuple[GridRun, ...]

    def mean(self, of: Callable[[GridRun], float]) -> float:
        return fmean(map(of, self.runs))

    def spread(self, of: Callable[[GridRun], float]) -> float:
        """Half the distance between the greatest and the least of the seeds."""
        values = [of(each) for each in self.runs]
        return (max(values) - min(values)) / 2


class StalenessGrid(Record, frozen=True):
    """All runs of a grid that came to their end."""

    title: str
    runs: tuple[GridRun, ...]
    failed: tuple[str, ...] = ()

    @property
    def horizon_s(self) -> float:
        """Seconds that every run has: those of the shortest."""
        return min(each.run.published_s[-1] for each in self.runs)

    @property
    def cells(self) -> list[GridCell]:
        keys = dict.fromkeys(sorted(((each.loss, each.staleness) for each in self.runs), key=self._order))
        return [GridCell(loss=loss, staleness=k, runs=tuple(self._of(loss, k))) for loss, k in keys]

    @property
    def losses(self) -> list[str]:
        return list(dict.fromkeys(each.loss for each in self.runs))

    def _order(self, key: tuple[str, int]) -> tuple[int, int]:
        return self.losses.index(key[0]), key[1]

    def _of(self, loss: str, staleness: int) -> Iterator[GridRun]:
        return (each for each in self.runs if (each.loss, each.staleness) == (loss, staleness))


def run_grid(scope: GridScope, *, at_once: int, tell: Callable[[str], None]) -> StalenessGrid:
    """Run the whole grid, seed by seed: one that is cut short has all cells of its first seeds."""
    keys = [(loss, k, seed) for seed in scope.seeds for k in scope.staleness for loss in scope.losses]
    trials = [_trial(scope, *key) for key in keys]
    done = run_trials(trials, at_once=at_once, tell=tell)
    named = zip(keys, (done.get(trial.name) for trial in trials), strict=True)
    runs = [GridRun(loss=loss, staleness=k, seed=seed, run=run) for (loss, k, seed), run in named if run]
    return StalenessGrid(
        title=_title(scope, trials),
        runs=tuple(runs),
        failed=tuple(name for name, run in done.items() if run is None),
    )


def _trial(scope: GridScope, loss: str, staleness: int, seed: int) -> LiveTrial:
    name = f"{loss}-{staleness}-{seed}"
    fixed = (
        f"steps={scope.steps}",
        f"seed={seed}",
        "control.schedule=steps_off",
        f"control.max_staleness={staleness}",
        "control.active_groups=null",
        f"evaluation.every={scope.steps}",
        f"checkpoints.every={scope.steps}",
        # A rate that falls has fallen by the last step, however many there are.
        "optimizer.learning_rate_schedule.total_updates=null",
        f"simulation.warmup_steps={max(2, scope.steps // 4)}",
    )
    recipe = resolve_recipe(scope.recipe, [*scope.assignments, *fixed])
    recipe = replace(recipe, algorithm=replace(recipe.algorithm, loss=preset(loss).loss))
    directory = str(Path(scope.directory) / name)
    return LiveTrial(name=name, recipe=recipe, directory=directory, keeps_run=scope.keeps_runs)


def _title(scope: GridScope, trials: Sequence[LiveTrial]) -> str:
    batch = trials[0].recipe.batch
    updates = f", {batch.updates} updates a step" if batch.updates > 1 else ""
    return (
        f"{scope.recipe}, {batch.groups} groups of {batch.group_size}, {scope.steps} steps{updates}, "
        f"{len(scope.seeds)} seeds"
    )
