"""`dora train`: a recipe in, a trained model and a report out."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer
from rich.markup import escape

from dora_rl.core.errors import ConfigError

if TYPE_CHECKING:
    from dora_rl.prepare.plan import RunPlan
    from dora_rl.run.summary import RunSummary

INTERRUPTED = 130


def _list_recipes(is_asked: bool) -> None:
    if is_asked:
        from dora_rl.core.recipe.shipped import shipped_recipes, summary_of

        for name, path in shipped_recipes().items():
            typer.echo(f"{name:<20} {summary_of(path)}")
        raise typer.Exit


def train(
    recipe: Annotated[
        str | None, typer.Argument(help="A recipe in YAML, or the name of a shipped one, such as demo.")
    ] = None,
    sets: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="Change one value of the recipe; any unambiguous end of its path will do.",
        ),
    ] = None,
    resume: Annotated[
        Path | None, typer.Option(metavar="RUN", help="Go on with the run in this directory.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show the resolved recipe and what it will cost, and stop.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object on stdout and nothing else.")
    ] = False,
    list_recipes: Annotated[
        bool,
        typer.Option(
            "--list", callback=_list_recipes, is_eager=True, help="Show the shipped recipes and exit."
        ),
    ] = False,
) -> None:
    """Train a model by reinforcement learning, with multi-version streaming rollout.

    dora train demo --set steps=20

    An interrupt lets the step in progress end and writes a checkpoint; --resume goes on.
    """
    if (recipe is None) == (resume is None):
        raise ConfigError(
            "give one of two: a recipe, or a run to go on with",
            hint="`dora train demo`, or `dora train --resume RUN`; `dora train --list` shows the recipes",
        )
    if resume is not None and (sets or dry_run):
        raise ConfigError(
            "a run goes on as it was started: --resume takes neither --set nor --dry-run",
            hint="leave them out, or start another run",
        )
    if resume is not None:
        _resume(resume, as_json=as_json)
    elif recipe is not None:
        _start(recipe, sets or [], is_dry=dry_run, as_json=as_json)


def _start(name: str, assignments: Sequence[str], *, is_dry: bool, as_json: bool) -> None:
    """Run a recipe, or only say what it would be."""
    from dora_rl.api import training
    from dora_rl.core.recipe.resolving import resolve_recipe
    from dora_rl.observe.terminal import say
    from dora_rl.prepare.placement import unused_cluster_keys
    from dora_rl.prepare.preparation import Preparation

    began = monotonic()
    recipe = resolve_recipe(name, assignments)
    if unused := unused_cluster_keys(recipe.cluster):
        say(f"warning: {unused}")
    with training.run_directory(recipe, name, is_dry=is_dry) as place:
        root = place.absolute()
        with _interruptible(root), Preparation(recipe, str(root)) as preparation:
            plan = preparation.plan(lambda text: say(escape(text)))
            if is_dry:
                _print_plan(plan, as_json=as_json)
                return
            _say_what_starts(plan)
            summary = training.run_prepared(preparation, plan, name)
    _finish(summary, monotonic() - began, as_json=as_json)


def _resume(root: Path, *, as_json: bool) -> None:
    """Go on with a run that was cut short."""
    from dora_rl.api import training

    with _interruptible(root):
        summary = training.resume(root)
    _finish(summary, None, as_json=as_json)


@contextmanager
def _interruptible(root: Path) -> Iterator[None]:
    """An interrupt before the run heeds them itself, or once it is over: whatever there is is durable."""
    from dora_rl.observe.terminal import say
    from dora_rl.run.layout import LiveLayout

    try:
        yield
    except KeyboardInterrupt:
        say(f"interrupted; go on with: dora train --resume {root}" if LiveLayout(root=root).setup.exists()
            else "interrupted before the run began")  # fmt: skip
        raise typer.Exit(INTERRUPTED) from None


def _print_plan(plan: "RunPlan", *, as_json: bool) -> None:
    from dora_rl.observe.run_plan import plan_as_json, show_plan
    from dora_rl.observe.terminal import stdout

    if as_json:
        typer.echo(plan_as_json(plan))
    else:
        show_plan(stdout(), plan)


def _say_what_starts(plan: "RunPlan") -> None:
    from dora_rl.observe.run_plan import in_units, start_lines
    from dora_rl.observe.terminal import say

    if plan.disk_bytes > plan.free_disk_bytes:
        say(f"warning: the run may write up to {in_units(plan.disk_bytes)}, and "
            f"{in_units(plan.free_disk_bytes)} are free")  # fmt: skip
    say(f"run directory: {plan.setup.run_directory}")
    for line in start_lines(plan):
        say(line)


def _finish(summary: "RunSummary", whole_s: float | None, *, as_json: bool) -> None:
    """Say what came of a run, and write its report."""
    from dora_rl.observe.live.metrics import MetricsTail
    from dora_rl.observe.run_plan import summary_lines
    from dora_rl.run.layout import LiveLayout

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
    from dora_rl.api.training import write_report
    from dora_rl.observe.terminal import say

    try:
        page = write_report(root)
    except OSError as error:
        say(f"warning: no report was written: {error.strerror}; `dora report {root}` tries again")
        return
    if not as_json:
        typer.echo(f"report: {page}")
