"""`dora train`: a recipe in, a trained model and a report out."""

import atexit
from collections.abc import Callable
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from dora_rl.core.errors import ConfigError
from dora_rl.core.lasting_output import lasting_output, note_losses
from dora_rl.core.visible_text import visible

if TYPE_CHECKING:
    from dora_rl.api.run_handle import Run
    from dora_rl.prepare.run_plan import RunPlan

INTERRUPTED = 130


def _list_recipes(is_asked: bool) -> None:
    if is_asked:
        from dora_rl.core.recipe.resolution import shipped_recipes, summary_of

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

    dora train --resume runs/demo-1 --set steps=40
    """
    if (recipe is None) == (resume is None):
        raise ConfigError(
            "give one of two: a recipe, or a run to go on with",
            hint="`dora train demo`, or `dora train --resume RUN`; `dora train --list` shows the recipes",
        )
    if resume is not None and dry_run:
        raise ConfigError(
            "--dry-run shows what a new run would be: --resume does not take it",
            hint="leave it out, or start another run",
        )
    from dora_rl import api
    from dora_rl.api.entry_points import resumed
    from dora_rl.api.work import Callbacks
    from dora_rl.core.recipe.resolution import resolve_recipe
    from dora_rl.core.struct_loader import split_assignment
    from dora_rl.launch.waiting import terminations_interrupt

    began = monotonic()
    with terminations_interrupt():
        if resume is not None:
            values = dict(split_assignment(text) for text in sets or [])
            _done(lambda: resumed(resume, values, {}, Callbacks(), "terminal"), None, as_json=as_json)
        elif recipe is not None:
            resolved, name = resolve_recipe(recipe, sets or []), Path(recipe).stem
            if dry_run:
                _print_plan(api.dry_run(resolved, name=name, progress="terminal"), as_json=as_json)
                return
            _done(lambda: api.train(resolved, name=name, progress="terminal"), began, as_json=as_json)


def _done(work: "Callable[[], Run]", began: float | None, *, as_json: bool) -> None:
    """Do a run and print its result; it outlives its terminal, whose loss changes nothing but that."""
    from dora_rl.run.run_layout import LiveLayout

    with lasting_output():
        run = _ended(work)
        try:
            _finish(run, began, as_json=as_json)
        finally:
            note_losses(LiveLayout(root=run.directory).orchestrator_log)


def _ended(work: "Callable[[], Run]") -> "Run":
    """The run after `work`, complete or interrupted; an interrupt before it began ends the command."""
    from dora_rl.api.run_handle import Interrupted
    from dora_rl.observe.terminal import say

    try:
        return work()
    except Interrupted as error:
        if error.run.summary is not None:
            return error.run
        say(f"interrupted; go on with: dora train --resume {error.run.directory}")
        raise typer.Exit(INTERRUPTED) from None
    except KeyboardInterrupt:
        say("interrupted before the run began")
        raise typer.Exit(INTERRUPTED) from None


def _print_plan(plan: "RunPlan", *, as_json: bool) -> None:
    from dora_rl.observe.run_plan_view import plan_as_json, show_plan
    from dora_rl.observe.terminal import stdout

    if as_json:
        typer.echo(plan_as_json(plan))
    else:
        show_plan(stdout(), plan)


def _finish(run: "Run", began: float | None, *, as_json: bool) -> None:
    """Print the result of a run, and write its report; a signal does not change how it ended any more."""
    from dora_rl.launch.waiting import ignore_interrupts, undisturbed

    # Also while the interpreter ends.
    atexit.register(ignore_interrupts)
    with undisturbed():
        _show(run, began, as_json=as_json)
    assert run.summary is not None, "it ended in this process"
    if not run.summary.is_complete:
        raise typer.Exit(INTERRUPTED)


def _show(run: "Run", began: float | None, *, as_json: bool) -> None:
    from dora_rl.observe.run_plan_view import summary_lines

    assert run.summary is not None, "it ended in this process"
    if as_json:
        typer.echo(msgspec.json.format(msgspec.json.encode(run.summary)))
    else:
        whole_s = None if began is None else monotonic() - began
        for line in summary_lines(run.summary, [*run.metrics, *run.evaluations], whole_s):
            typer.echo(visible(line))
    _report(run, as_json=as_json)


def _report(run: "Run", *, as_json: bool) -> None:
    from dora_rl.observe.terminal import say

    if not as_json:
        say("writing the report ...")
    try:
        page = run.report()
    except OSError as error:
        say(f"warning: no report was written: {error.strerror}; `dora report {run.directory}` tries again")
        return
    if not as_json:
        typer.echo(visible(f"report: {page}"))
