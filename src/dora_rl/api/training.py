"""The steps of a run: claim its directory, run what was prepared or go on, report. Knows no command line."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

from dora_rl.core.errors import ConfigError
from dora_rl.core.history import History
from dora_rl.core.recipe import Recipe
from dora_rl.observe.live.completions import CompletionLog, load_decode
from dora_rl.observe.live.metrics import MetricsTail
from dora_rl.observe.live.trackers import Trackers
from dora_rl.observe.live.view import shown
from dora_rl.observe.report.reading import COMPLETIONS, is_in_use, read_run
from dora_rl.observe.terminal import say
from dora_rl.prepare.plan import RunPlan
from dora_rl.prepare.preparation import Preparation
from dora_rl.run.layout import LiveLayout
from dora_rl.run.run import Watcher, resume_live, run_live
from dora_rl.run.summary import RunSummary
from dora_rl.store.claim import claimed, next_free
from dora_rl.store.errors import RunError

_ELSEWHERE = "choose another directory: --set run.directory=..."


@contextmanager
def run_directory(recipe: Recipe, name: str, *, is_dry: bool = False) -> Iterator[Path]:
    """The one that is asked for, else the next free number of this recipe, which is this run's alone.

    A dry one is not claimed: it says where a run would be.
    """
    place, stem = Path("runs"), Path(name).stem
    if recipe.run.directory is not None:
        path = Path(recipe.run.directory)
        _check_writable(path)
        _check_free(path)
        yield path
    elif is_dry:
        _check_writable(place)
        yield next_free(place, stem)
    else:
        _check_writable(place)
        with claimed(place, stem) as path:
            yield path


def run_prepared(preparation: Preparation, plan: RunPlan, name: str) -> RunSummary:
    """Do the warm start where there is one, and run what was planned, shown to whoever watches."""
    layout, recipe = LiveLayout(root=Path(plan.setup.run_directory)), plan.setup.recipe
    title = f"{recipe.model}, {Path(name).stem}"
    with (
        _trackers(layout, recipe) as trackers,
        shown(title, recipe, rewards_log=str(layout.rewards_log)) as view,
    ):
        inputs = preparation.finish(_tell)
        return run_live(plan.setup, inputs, [view, _completions(layout, recipe), trackers.watch])


def resume(root: Path) -> RunSummary:
    """Go on with a run that was cut short, shown to whoever watches."""
    layout = LiveLayout(root=root)
    recipe = layout.read_recipe()
    _check_resumable(layout)
    past = History(layout.events) if layout.events.is_file() else None
    title = f"{recipe.model}, {root.name}"
    with (
        _trackers(layout, recipe) as trackers,
        shown(title, recipe, past, rewards_log=str(layout.rewards_log)) as view,
    ):
        return resume_live(root, [view, _completions(layout, recipe), trackers.watch], _tell)


def write_report(root: Path) -> Path:
    """The page of a run, beside it; an OSError where it cannot be written."""
    # It comes with what draws, which takes a second to import.
    from dora_rl.observe.report.page import write_page

    return write_page(read_run(root), root / "report.html")


def _tell(text: str) -> None:
    """While the screen is drawn: it stands in for stderr, and moves down for what is printed there."""
    print(text, file=sys.stderr, flush=True)


def _check_resumable(layout: LiveLayout) -> None:
    """Said at once, before the past is read; whoever opens the run checks again."""
    if layout.is_finished:
        raise RunError(
            f"the run in {layout.root} is finished: there is nothing to resume",
            hint=f"`dora report {layout.root}` shows it; start another run with `dora train RECIPE`",
        )
    if is_in_use(layout.lock):
        raise RunError(
            f"the run in {layout.root} is going on in another process", hint="wait for it, or end it"
        )


def _check_free(path: Path) -> None:
    if path.is_dir() and any(path.iterdir()):
        raise ConfigError(
            f"run.directory {path} exists and is not empty",
            hint=f"resume the run in it with `dora train --resume {path}`, or choose another directory",
        )


def _check_writable(path: Path) -> None:
    """Before anything is planned; whoever writes there may still be refused."""
    nearest = next(place for place in (path, *path.absolute().parents) if os.path.lexists(place))
    if not nearest.is_dir():
        raise ConfigError(
            f"run directory {path} cannot be made: {nearest} is a file",
            hint=_ELSEWHERE,
        )
    if not os.access(nearest, os.R_OK | os.W_OK | os.X_OK):
        raise ConfigError(
            f"run directory {path} cannot be made: {nearest} cannot be written", hint=_ELSEWHERE
        )


def _completions(layout: LiveLayout, recipe: Recipe) -> Watcher:
    return CompletionLog(
        layout.root / COMPLETIONS,
        journal=layout.journal,
        num_trajectories=recipe.run.log_completions,
        decode=lambda: load_decode(layout.tokenizer),
    ).watch


def _trackers(layout: LiveLayout, recipe: Recipe) -> Trackers:
    if "tensorboard" in recipe.run.trackers and find_spec("tensorboard") is None:
        say("TensorBoard is not installed: metrics go to metrics.jsonl alone (pip install tensorboard)")
    metrics = MetricsTail(layout.metrics_log)
    # What a resumed run logged before is logged.
    metrics.read()
    return Trackers(recipe.run.trackers, run=layout.root.name, recipe=recipe, metrics=metrics)
