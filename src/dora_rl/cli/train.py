"""`dora train`: a recipe in, a trained model and a report out."""

from pathlib import Path
from typing import Annotated

import typer

from dora_rl.core.errors import ConfigError


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
    from dora_rl.api.training import go_on, start

    if resume is not None:
        go_on(resume, as_json=as_json)
    elif recipe is not None:
        start(recipe, sets or [], is_dry=dry_run, as_json=as_json)
