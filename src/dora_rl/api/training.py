"""What `dora train` does: resolve, plan, run or go on, and say what came of it."""

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from time import monotonic

import msgspec
import typer

from dora_rl.core.errors import ConfigError
from dora_rl.core.history import History
from dora_rl.core.recipe import Recipe
from dora_rl.core.recipe.resolving import resolve_recipe
from dora_rl.observe.live.completions import CompletionLog, load_decode
from dora_rl.observe.live.metrics import MetricsTail
from dora_rl.observe.live.trackers import Trackers
from dora_rl.observe.live.view import shown
from dora_rl.observe.report.reading import COMPLETIONS, is_in_use, read_run
from dora_rl.observe.run_plan import in_units, plan_as_json, show_plan, start_lines, summary_lines
from dora_rl.observe.terminal import say, stdout
from dora_rl.prepare.aside import Tell, aside_telling
from dora_rl.prepare.placement import unused_cluster_keys
from dora_rl.prepare.plan import RunPlan
from dora_rl.run.layout import LiveLayout
from dora_rl.run.run import Watcher, resume_live, run_live
from dora_rl.run.summary import RunSummary
from dora_rl.store.claim import claimed, next_free
from dora_rl.store.errors import RunError

INTERRUPTED = 130
_ELSEWHERE = "choose another directory: --set run.directory=..."


def start(name: str, assignments: Sequence[str], *, is_dry: bool, as_json: bool) -> None:
    """Run a recipe, or only say what it would be."""
    began = monotonic()
    recipe = resolve_recipe(name, assignments)
    if unused := unused_cluster_keys(recipe.cluster):
        say(f"warning: {unused}")
    with _run_directory(recipe, name, is_dry=is_dry) as root:
        layout = LiveLayout(root=root.absolute())
        with _interruptible(layout):
            plan = aside_telling(_planned, recipe, str(layout.root))
        if is_dry:
            _print_plan(plan, as_json=as_json)
            return
        summary = _run(plan, layout, name)
    _finish(summary, monotonic() - began, as_json=as_json)


def _run(plan: RunPlan, layout: LiveLayout, name: str) -> RunSummary:
    if plan.disk_bytes > plan.free_disk_bytes:
        say(f"warning: the run may write up to {in_units(plan.disk_bytes)}, and "
            f"{in_units(plan.free_disk_bytes)} are free")  # fmt: skip
    say(f"run directory: {layout.root}")
    for line in start_lines(plan):
        say(line)
    recipe = plan.setup.recipe
    title = f"{recipe.model}, {Path(name).stem}"
    with (
        _interruptible(layout),
        _trackers(layout, recipe) as trackers,
        shown(title, recipe, rewards_log=str(layout.rewards_log)) as view,
    ):
        return run_live(plan.setup, [view, _completions(layout, recipe), trackers.watch], _tell)


def _planned(tell: Tell, recipe: Recipe, directory: str) -> RunPlan:
    """Looked for where it runs: it comes with torch."""
    from dora_rl.prepare.planner import plan_run

    return plan_run(recipe, directory, tell)


def go_on(root: Path, *, as_json: bool) -> None:
    """Resume a run that was cut short."""
    layout = LiveLayout(root=root)
    recipe = layout.read_recipe()
    _check_resumable(layout)
    past = History(layout.events) if layout.events.is_file() else None
    title = f"{recipe.model}, {root.name}"
    with (
        _interruptible(layout),
        _trackers(layout, recipe) as trackers,
        shown(title, recipe, past, rewards_log=str(layout.rewards_log)) as view,
    ):
        summary = resume_live(root, [view, _completions(layout, recipe), trackers.watch], _tell)
    _finish(summary, None, as_json=as_json)


def _tell(text: str) -> None:
    """While the screen is drawn: it stands in for stderr, and moves down for what is printed there."""
    print(text, file=sys.stderr, flush=True)


@contextmanager
def _interruptible(layout: LiveLayout) -> Iterator[None]:
    """An interrupt before the run heeds them itself, or once it is over: whatever there is is durable."""
    try:
        yield
    except KeyboardInterrupt:
        say(f"interrupted; go on with: dora train --resume {layout.root}" if layout.setup.exists()
            else "interrupted before the run began")  # fmt: skip
        raise typer.Exit(INTERRUPTED) from None


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


@contextmanager
def _run_directory(recipe: Recipe, name: str, *, is_dry: bool) -> Iterator[Path]:
    """The one that is asked for, else the next free number of this recipe, which is this run's alone."""
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


def _print_plan(plan: RunPlan, *, as_json: bool) -> None:
    if as_json:
        typer.echo(plan_as_json(plan))
    else:
        show_plan(stdout(), plan)


def _finish(summary: RunSummary, whole_s: float | None, *, as_json: bool) -> None:
    if as_json:
        typer.echo(msgspec.json.format(msgspec.json.encode(summary)))
    else:
        metrics = MetricsTail(LiveLayout(root=Path(summary.run_directory)).metrics_log).read()
        for line in summary_lines(summary, metrics, whole_s):
            typer.echo(line)
    _report(Path(summary.run_directory), as_json=as_json)
    if not summary.is_complete:
        raise typer.Exit(INTERRUPTED)


def _report(root: Path, *, as_json: bool) -> None:
    # It comes with what draws, which takes a second to import.
    from dora_rl.observe.report.page import write_page

    try:
        page = write_page(read_run(root), root / "report.html")
    except OSError as error:
        say(f"warning: no report was written: {error.strerror}; `dora report {root}` tries again")
        return
    if not as_json:
        typer.echo(f"report: {page}")
