"""`dora keys`: what can stand in a recipe."""

from typing import Annotated

import typer


def keys(
    section: Annotated[
        str | None, typer.Argument(help="Show only this section, such as optimizer or algorithm.loss.")
    ] = None,
    markdown: Annotated[
        bool, typer.Option("--markdown", help="The whole reference, as docs/reference.md has it.")
    ] = False,
    peers: Annotated[
        bool, typer.Option("--peers", help="What other trainers call them, as docs/coming_from.md has it.")
    ] = False,
) -> None:
    """Show every key of a recipe with its type, default and meaning."""
    from dora_rl.core.errors import UserError
    from dora_rl.core.named import did_you_mean
    from dora_rl.core.recipe import Recipe
    from dora_rl.core.recipe.key_reference import reference, sections
    from dora_rl.core.recipe.peer_names import page

    if peers:
        typer.echo(page(), nl=False)
        return
    if markdown:
        typer.echo(reference(Recipe), nl=False)
        return
    every = list(sections(Recipe))
    shown = [each for each in every if section is None or f"{each.path}.".startswith(f"{section}.")]
    if not shown:
        known = list(dict.fromkeys(each.path for each in every if each.path))
        hint = did_you_mean(section or "", known, "it has")
        raise UserError(f"a recipe has no section '{section}'", hint=hint)
    for each in shown:
        typer.secho(each.title, bold=True)
        typer.echo(f"  {each.meaning}")
        for key in each.keys:
            typer.echo(f"  {key.name}: {key.type}; default {key.default}\n      {key.meaning}")
        typer.echo()
