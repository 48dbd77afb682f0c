"""What `dora simulate` does: resolve, run, show. The only place where simulator and observers meet."""

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import msgspec
import typer

from dora_rl.core.errors import DoraError
from dora_rl.core.history import History, HistoryWriter, Watcher
from dora_rl.core.inputs import Published
from dora_rl.core.recipe import Recipe
from dora_rl.core.struct_loader import to_yaml
from dora_rl.observe.simulation_summary import show
from dora_rl.observe.terminal import progress, say, stdout
from dora_rl.observe.timeline import Timeline, Tracker
from dora_rl.run.open_run import replay_live
from dora_rl.run.run_layout import LiveLayout
from dora_rl.sim.history_replay import replay_history
from dora_rl.sim.simulated_run import Result, simulate
from dora_rl.sim.simulation_setup import complete, resolve


def run_one(
    file: Path | None,
    preset: str | None,
    assignments: Sequence[str],
    *,
    as_json: bool,
    log: Path | None,
    out: Path | None,
) -> None:
    """Run one set-up, leave behind what was asked for, and say what it gave."""
    asked = resolve(preset=preset, file=file, assignments=assignments)
    recipe = complete(asked)
    _say_what_was_chosen(asked, recipe)
    tracker = Tracker()
    logs = [path for path in (log, out and out / "events.jsonl") if path]
    result = _run(recipe, logs, [tracker.watch] if out else [])
    if out:
        _leave_behind(out, recipe, result, tracker.timeline())
    if as_json:
        typer.echo(_json(result))
    else:
        show(stdout(), recipe, result)


def replay_log(path: Path) -> None:
    """Say whether control decides again as it did; a difference is a failure.

    The log of a simulation, or of a live run, or the directory of one.
    """
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


def _say_what_was_chosen(asked: Recipe, recipe: Recipe) -> None:
    if asked.cluster != recipe.cluster:
        c = recipe.cluster
        place = (
            f"{c.elastic_gpus} generate and train in turn" if c.elastic_gpus else f"{c.rollout_gpus} generate"
        )
        say(f"planner: of {c.gpus} GPUs {place}, in instances of {c.tensor_parallel}")


def _run(recipe: Recipe, logs: Sequence[Path], watchers: Sequence[Watcher]) -> Result:
    with ExitStack() as stack:
        written = [stack.enter_context(HistoryWriter(path, recipe)).watch for path in logs]
        advance = stack.enter_context(progress("simulating", recipe.steps))
        return simulate(
            recipe, [*watchers, *written, lambda e, _: advance("") if type(e) is Published else None]
        )


def _leave_behind(out: Path, recipe: Recipe, result: Result, timeline: Timeline) -> None:
    # Matplotlib takes longer to load than most runs take.
    from dora_rl.observe.pictures.look import save
    from dora_rl.observe.pictures.timeline_picture import Panel, draw_timelines

    (out / "recipe.yaml").write_text(to_yaml(recipe), encoding="utf-8")
    (out / "result.json").write_text(f"{_json(result)}\n", encoding="utf-8")
    title = f"{result.schedule}: {result.step_time_s:,.0f} s a step, {result.share_of_limit:.0%} of the limit"
    panel = Panel(
        title=f"{recipe.model} on {result.gpus} x {recipe.cluster.gpu}", gpus=result.gpus, timeline=timeline
    )
    save(draw_timelines([panel], timeline.end, title=title), out / "timeline.png")
    say(f"wrote result.json, recipe.yaml, events.jsonl and timeline.png into {out}")


def _json(result: Result) -> str:
    return msgspec.json.format(msgspec.json.encode(result)).decode()
