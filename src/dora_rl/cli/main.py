"""The composition of the command line, and the one place where a DoraError becomes text and an exit code.

A command is a module beside this one, registered here by one line: `app.command()(plan.plan)` for a single
command, `app.add_typer(simulate.app, name="simulate")` for a family. It declares options, and imports what
it runs inside its functions, so that `dora --help` loads neither numpy nor matplotlib nor torch.
"""

import sys
from typing import Annotated, NoReturn

import typer

from dora_rl import __version__
from dora_rl.cli import (
    bench,
    cluster,
    doctor,
    evaluate,
    generate,
    init,
    keys,
    model,
    plan,
    report,
    scale,
    serve,
    simulate,
    train,
)
from dora_rl.cli.recipe_command import RecipeCommand
from dora_rl.core.errors import DoraError, missing_package
from dora_rl.core.lasting_output import lasting_output, needed_output
from dora_rl.core.visible_text import visible

app = typer.Typer(
    name="dora",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
app.add_typer(bench.app, name="bench")
app.add_typer(cluster.app, name="cluster")
app.add_typer(model.app, name="model")
app.add_typer(simulate.app, name="simulate")
app.command()(doctor.doctor)
app.command("eval", cls=RecipeCommand)(evaluate.evaluate)
app.command(cls=RecipeCommand)(generate.generate)
app.command()(init.init)
app.command()(keys.keys)
app.command()(plan.plan)
app.command()(report.report)
app.command()(scale.scale)
app.command(cls=RecipeCommand)(serve.serve)
app.command(cls=RecipeCommand)(train.train)


def _show_version(is_asked: bool) -> None:
    if is_asked:
        typer.echo(f"dora {__version__}")
        raise typer.Exit


@app.callback()
def dora(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit."),
    ] = False,
) -> None:
    """Reinforcement-learning post-training with multi-version streaming rollout."""


def main() -> None:
    """Run the command line; usage errors exit with 2 and an interrupt with 130, as typer has it."""
    try:
        with needed_output():
            app()
    except DoraError as error:
        _exit_with(error)
    except ModuleNotFoundError as error:
        missing = missing_package(error, needed_for="this command")
        if missing is None:
            raise
        _exit_with(missing)


def _exit_with(error: DoraError) -> NoReturn:
    # Also where nobody is left to be told, the code says how it ended.
    with lasting_output():
        typer.echo(visible(f"error: {error.message}"), err=True)
        if error.hint:
            typer.echo(visible(f"hint: {error.hint}"), err=True)
    sys.exit(error.exit_code)
