"""`dora simulate`: one set-up under virtual time; `study` for comparisons, `replay` for an event log."""

from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from dora_rl.cli import study


class _RunOrFamily(TyperGroup):
    """Options of its own and sub-commands: the recipe is an argument only where no sub-command is named."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        ctx.meta["names_command"] = bool(args) and args[0] in self.commands
        ctx.allow_interspersed_args = not ctx.meta["names_command"]
        return super().parse_args(ctx, args)

    def get_params(self, ctx: Any) -> Any:
        params = super().get_params(ctx)
        if ctx.meta.get("names_command"):
            return [param for param in params if param.param_type_name != "argument"]
        return params


app = typer.Typer(cls=_RunOrFamily, invoke_without_command=True)
app.add_typer(study.app, name="study")


def _list_presets(is_asked: bool) -> None:
    if is_asked:
        from dora_rl.sim.simulation_setup import PRESETS

        for name, preset in PRESETS.items():
            typer.echo(f"{name:<12} {preset.summary}")
        raise typer.Exit


@app.callback()
def simulate(
    ctx: typer.Context,
    recipe: Annotated[
        Path | None, typer.Argument(help="A recipe in YAML; what it leaves out has defaults.")
    ] = None,
    preset: Annotated[str | None, typer.Option(help="A named set-up to start from.")] = None,
    schedule: Annotated[
        str | None, typer.Option(help="sync, one_step_off, partial, async_ratio, dora_onset or dora.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Of lengths, prompts and faults.")] = None,
    steps: Annotated[int | None, typer.Option(help="Train steps.")] = None,
    sets: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="Change one value of the recipe; any unambiguous end of its path will do.",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")] = False,
    log: Annotated[Path | None, typer.Option(help="Write the event log here.")] = None,
    out: Annotated[
        Path | None, typer.Option(help="Write result, recipe, event log and a picture into this directory.")
    ] = None,
    list_presets: Annotated[
        bool, typer.Option("--list", callback=_list_presets, is_eager=True, help="Show the presets and exit.")
    ] = False,
) -> None:
    """What one set-up would give: a recipe, a preset, or both, and whatever --set changes.

    dora simulate --preset paper-128 --schedule dora --set max_staleness=3 --steps 12
    """
    if ctx.invoked_subcommand is not None:
        return
    from dora_rl.cli.running import run_one

    options = {"control.schedule": schedule, "seed": seed, "steps": steps}
    assignments = [f"{key}={value}" for key, value in options.items() if value is not None]
    run_one(recipe, preset, [*assignments, *(sets or [])], as_json=as_json, log=log, out=out)


@app.command()
def replay(path: Annotated[Path, typer.Argument(help="An event log, or a run.")]) -> None:
    """Feed a recorded run through the control plane again: does it decide the same?"""
    from dora_rl.cli.running import replay_log

    replay_log(path)
