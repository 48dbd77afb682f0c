"""`dora simulate`: one set-up under virtual time; `study` for comparisons, `replay` for an event log."""

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer
from typer.core import TyperGroup

from dora_rl.cli import study
from dora_rl.core.errors import DoraError

if TYPE_CHECKING:
    from dora_rl.core.history import Watcher
    from dora_rl.core.recipe import Recipe
    from dora_rl.costs.seconds_spent import SecondsSpent
    from dora_rl.observe.timeline import Timeline
    from dora_rl.sim.simulated_run import Result


class _RunOrFamily(TyperGroup):
    """A command with sub-commands: the recipe is an argument only where no sub-command is named."""

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
        Path | None,
        typer.Argument(help="A recipe in YAML, or a shipped one's name; what it leaves out has defaults."),
    ] = None,
    preset: Annotated[str | None, typer.Option(help="A named set-up to start from.")] = None,
    schedule: Annotated[
        str | None,
        typer.Option(help="sync, one_step_off, steps_off, partial, counted, async_ratio, dora_onset, dora."),
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
        Path | None, typer.Option(help="Write result, recipe, event log and pictures into this directory.")
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
    options = {"control.schedule": schedule, "seed": seed, "steps": steps}
    assignments = [f"{key}={value}" for key, value in options.items() if value is not None]
    _simulate_one(recipe, preset, [*assignments, *(sets or [])], as_json=as_json, log=log, out=out)


@app.command()
def replay(path: Annotated[Path, typer.Argument(help="An event log, or a run.")]) -> None:
    """Feed a recorded run through the control plane again: does it decide the same?"""
    _replay_log(path)


def _simulate_one(
    file: Path | None,
    preset: str | None,
    assignments: Sequence[str],
    *,
    as_json: bool,
    log: Path | None,
    out: Path | None,
) -> None:
    """Simulate one set-up, write the files that were asked for, and print the result."""
    from dora_rl.core.recipe.unused_keys import simulation_remarks
    from dora_rl.costs.seconds_meter import SecondsMeter
    from dora_rl.observe.simulation_summary import show
    from dora_rl.observe.terminal import say, stdout
    from dora_rl.observe.timeline import Tracker
    from dora_rl.sim.simulation_setup import complete, resolve

    asked = resolve(preset=preset, file=file, assignments=assignments)
    recipe = complete(asked)
    _say_what_was_chosen(asked, recipe)
    _say_what_is_imagined(recipe)
    for remark in simulation_remarks(recipe):
        say(f"warning: {remark}")
    tracker = Tracker()
    meter = SecondsMeter(batch_groups=recipe.batch.groups, group_size=recipe.batch.group_size)
    logs = [path for path in (log, out and out / "events.jsonl") if path]
    result = _run(recipe, logs, [meter.watch, *([tracker.watch] if out else [])])
    seconds = meter.result()
    if out:
        _leave_behind(out, recipe, result, tracker.timeline(), seconds)
    if as_json:
        typer.echo(_json(result, seconds))
    else:
        show(stdout(), recipe, result, seconds)


def _replay_log(path: Path) -> None:
    """Print whether control decides again as the log has it; a difference is a failure.

    The log of a simulation, or of a live run, or the directory of one.
    """
    from dora_rl.core.history import History
    from dora_rl.observe.terminal import say
    from dora_rl.run.open_run import replay_live
    from dora_rl.run.run_layout import LiveLayout
    from dora_rl.sim.history_replay import replay_history

    live = LiveLayout(root=path if path.is_dir() else path.parent)
    is_live = live.setup.exists() and path in (live.root, live.events)
    history = History(live.events if is_live else path)
    found = replay_live(live.root) if is_live else replay_history(history)
    if history.torn_line:
        say(f"{path} breaks off at line {history.torn_line}: the run did not end in order")
    if (d := found.difference) is None:
        typer.echo(f"the same {found.num_decisions:,} decisions to {found.num_inputs:,} inputs")
        return
    recorded, replayed = d.recorded or "nothing", d.refusal or d.replayed or "nothing"
    raise DoraError(
        f"seq {d.seq}: after {d.event} the log has {recorded}, the replay {replayed}",
        hint="the log was altered, or written by a version that decides otherwise",
    )


def _say_what_was_chosen(asked: "Recipe", recipe: "Recipe") -> None:
    from dora_rl.observe.terminal import say

    if asked.cluster != recipe.cluster:
        c = recipe.cluster
        place = (
            f"{c.elastic_gpus} generate and train in turn" if c.elastic_gpus else f"{c.rollout_gpus} generate"
        )
        say(f"planner: of {c.gpus} GPUs {place}, in instances of {c.tensor_parallel}")


def _say_what_is_imagined(recipe: "Recipe") -> None:
    """Tell of the lengths that are assumed where a recipe to train on was given, which knows its rows."""
    from dora_rl.core.recipe import Lognormal, Recipe
    from dora_rl.observe.terminal import say

    lengths = recipe.task.lengths
    if recipe.data is not None and recipe.task == Recipe().task and isinstance(lengths, Lognormal):
        say(
            f"rows are not read: prompts of {recipe.task.prompt_tokens} and responses of "
            f"{lengths.median_tokens:g} tokens in the median, up to {lengths.max_tokens}, are assumed "
            f"(task.prompt_tokens, task.lengths), on {recipe.cluster.gpus} x {recipe.cluster.gpu} (cluster)"
        )


def _run(recipe: "Recipe", logs: Sequence[Path], watchers: Sequence["Watcher"]) -> "Result":
    from dora_rl.core.history import HistoryWriter
    from dora_rl.core.inputs import Published
    from dora_rl.observe.terminal import progress
    from dora_rl.sim.simulated_run import simulate as run_simulation

    with ExitStack() as stack:
        written = [stack.enter_context(HistoryWriter(path, recipe)).watch for path in logs]
        advance = stack.enter_context(progress("simulating", recipe.steps))
        return run_simulation(
            recipe, [*watchers, *written, lambda e, _: advance("") if type(e) is Published else None]
        )


def _leave_behind(
    out: Path, recipe: "Recipe", result: "Result", timeline: "Timeline", seconds: "SecondsSpent"
) -> None:
    from dora_rl.core.struct_loader import to_yaml

    # Matplotlib takes longer to load than most runs take.
    from dora_rl.observe.pictures.look import save
    from dora_rl.observe.pictures.seconds_picture import draw_seconds
    from dora_rl.observe.pictures.timeline_picture import Panel, draw_timelines
    from dora_rl.observe.result_words import limit_words
    from dora_rl.observe.terminal import say

    (out / "recipe.yaml").write_text(to_yaml(recipe), encoding="utf-8")
    (out / "result.json").write_text(f"{_json(result, seconds)}\n", encoding="utf-8")
    title = f"{result.schedule}: {result.step_time_s:,.0f} s a step, {limit_words(result)}"
    panel = Panel(
        title=f"{recipe.model} on {result.gpus} x {recipe.cluster.gpu}", gpus=result.gpus, timeline=timeline
    )
    save(draw_timelines([panel], timeline.end, title=title), out / "timeline.png")
    save(draw_seconds(seconds), out / "seconds.png")
    say(f"wrote result.json, recipe.yaml, events.jsonl, timeline.png and seconds.png into {out}")


def _json(result: "Result", seconds: "SecondsSpent") -> str:
    fields = {**msgspec.structs.asdict(result), "seconds": seconds}
    return msgspec.json.format(msgspec.json.encode(fields)).decode()
