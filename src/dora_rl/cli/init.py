"""`dora init`: a directory with a recipe and a reward function that work as they are."""

from pathlib import Path
from typing import Annotated

import typer


def init(
    directory: Annotated[Path, typer.Argument(help="A directory that does not exist, or is empty.")],
) -> None:
    """Write a starter recipe, a reward function and some rows; `dora train DIR/recipe.yaml` runs them."""
    from dora_rl.cli.starting import write_starter

    write_starter(directory)
    typer.echo(f"wrote recipe.yaml, rewards.py and rows.jsonl into {directory}")
    typer.echo(f"next: dora train {directory / 'recipe.yaml'}")
