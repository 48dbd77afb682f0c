"""A command that reads a recipe: keys of it that are given as options are answered with `--set`."""

from collections.abc import Iterable
from difflib import get_close_matches
from typing import Any

from typer.core import TyperCommand

from dora_rl.core.errors import ConfigError


class RecipeCommand(TyperCommand):
    """A command with `--set`. Other trainers have an option for every setting; here that is a key."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments as every command does; an unknown option may be a key of the recipe."""
        try:
            return super().parse_args(ctx, args)
        except Exception as error:
            # By its fields, as the class is click's or typer's own copy of it, by typer's version.
            if not hasattr(error, "possibilities") or not hasattr(error, "option_name"):
                raise
            raise _no_option(ctx.command_path, error.option_name, error.possibilities or ()) from error


def _no_option(command: str, option: str, options: Iterable[str]) -> ConfigError:
    key, near = option.lstrip("-").replace("-", "_"), get_close_matches(option, options, n=1, cutoff=0.8)
    meant = f"did you mean {near[0]}? " if near else ""
    return ConfigError(
        f"{command} has no option {option}",
        hint=f"{meant}a key of the recipe is changed with --set {key}=VALUE",
    )
