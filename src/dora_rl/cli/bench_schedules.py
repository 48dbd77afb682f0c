"""`dora bench schedules`: one recipe under all schedules, one live run after the other."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dora_rl.cli.bench_device import BenchDevice

if TYPE_CHECKING:
    from rich.table import Table

    from dora_rl.bench.schedules.schedule_comparison import ScheduleComparison, ScheduleRun


def schedules(
    device: Annotated[
        BenchDevice, typer.Option(help="cpu: a recipe with its rewards. cuda: prescribed lengths, one GPU.")
    ] = BenchDevice.CPU,
    steps: Annotated[int, typer.Option(min=3, help="Train steps of each run.")] = 20,
    names: Annotated[
        str, typer.Option("--schedules", help="Which, with commas; left out, all six. Costs come from sync.")
    ] = "",
    seeds: Annotated[str, typer.Option(help="One run of every schedule for each; with commas.")] = "0",
    recipe: Annotated[str, typer.Option(help="What is trained, where lengths are not prescribed.")] = "demo",
    sets: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change a value of the recipe.")
    ] = None,
    prescribed: Annotated[
        bool | None, typer.Option(help="Prescribed lengths and random weights; left out, on a GPU only.")
    ] = None,
    shape: Annotated[
        str | None, typer.Option(help="With prescribed lengths: qwen3-0.6b, qwen3-1.7b or tiny.")
    ] = None,
    groups: Annotated[int | None, typer.Option(min=1, help="With prescribed lengths: of a batch.")] = None,
    max_tokens: Annotated[
        int | None, typer.Option(min=32, help="With prescribed lengths: the longest response.")
    ] = None,
    engine: Annotated[
        str, typer.Option(help="Engine of the instances: native, vllm, or one of your own.")
    ] = "native",
    keep: Annotated[
        Path | None, typer.Option(help="Keep the runs under this directory; else they are temporary.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")] = False,
) -> None:
    """One recipe, lengths with a long tail, the same engine: every schedule with the placement that suits it.

    Beside each measured step time stands the simulator's, given the costs of the synchronous run.
    """
    from tempfile import TemporaryDirectory

    import msgspec

    from dora_rl.bench.schedules.options import ScheduleOptions, make_scope
    from dora_rl.bench.schedules.schedule_comparison import compare, reward_gaps
    from dora_rl.observe.terminal import say, stdout

    options = ScheduleOptions(
        device=device.value,
        steps=steps,
        schedules=names,
        seeds=seeds,
        recipe=recipe,
        assignments=tuple(sets or ()),
        is_prescribed=prescribed,
        shape=shape,
        groups=groups,
        max_tokens=max_tokens,
        engine=engine,
    )
    with TemporaryDirectory(prefix="dora-bench-") as place:
        scope = make_scope(options, Path(place), keep)
        comparison = compare(scope, tell=lambda run: say(_line(run)))
    if as_json:
        typer.echo(msgspec.json.format(msgspec.json.encode(comparison)))
        return
    stdout().print(_table(comparison))
    if not comparison.claims_speed_only:
        for schedule, gap, spread in reward_gaps(comparison):
            apart = f"{spread:.3f}" if spread is not None else "unknown: give several --seeds"
            typer.echo(f"reward by step, {schedule}: {gap:.3f} from sync; its seeds are apart {apart}")


def _line(run: "ScheduleRun") -> str:
    rewards = [reward for reward in run.rewards if reward is not None]
    learned = f", reward {rewards[0]:.3f} to {rewards[-1]:.3f}" if rewards else ""
    return f"{run.schedule}, seed {run.seed}: {run.step_s:.3f} s a step{learned}"


def _table(comparison: "ScheduleComparison") -> "Table":
    from dora_rl.observe.tables import table

    shown = table(
        comparison.title,
        "schedule", ">seed", "placement", ">steps\n/min", ">x sync", ">step\ns", ">predicted\ns", ">off",
        ">reward\nfirst", ">\nlast", ">staleness\nmean", ">\nmax", ">starved\ns", ">window\ns",
        ">instance\nidle", ">trainer\nidle", ">GPU\nbusy",
        caption="starved, window: the trainer's waits in a step. predicted: simulated with the costs of sync."
        + (" Lengths are prescribed: speed only." if comparison.claims_speed_only else ""),
    )  # fmt: skip
    for run in comparison.runs:
        shown.add_row(*_cells(run, comparison.sync_step_s(run.seed)))
    return shown


def _cells(run: "ScheduleRun", sync_s: float | None) -> tuple[str, ...]:
    predicted = run.predicted_step_s
    rewards = [reward for reward in run.rewards if reward is not None]
    return (
        run.schedule,
        str(run.seed),
        run.placement,
        f"{run.steps_per_minute:.1f}",
        f"{sync_s / run.step_s:.2f}" if sync_s is not None else "-",
        f"{run.step_s:.3f}",
        f"{predicted:.3f}" if predicted is not None else "-",
        f"{predicted / run.step_s - 1:+.0%}" if predicted is not None else "-",
        *((f"{rewards[0]:.3f}", f"{rewards[-1]:.3f}") if rewards else ("-", "-")),
        f"{run.staleness_mean:.2f}",
        str(run.staleness_max),
        f"{run.starved_s:.3f}",
        f"{run.window_stall_s:.3f}",
        f"{run.instance_idle_share:.0%}",
        f"{run.trainer_idle_share:.0%}",
        f"{run.gpu_busy_share:.0%}" if run.gpu_busy_share is not None else "-",
    )
