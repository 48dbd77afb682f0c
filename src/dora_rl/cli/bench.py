"""`dora bench`: how fast the parts are, against what they must reach."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

if TYPE_CHECKING:
    from rich.table import Table

    from dora_rl.sim.bench import Report, Size
    from dora_rl.weights.bench.measure import Row

Device = Literal["cpu", "cuda"]

app = typer.Typer(no_args_is_help=True, help="How fast the parts are, against what they must reach.")


@app.callback()
def bench() -> None:
    """A family, even while it has one member."""


@app.command()
def control(
    instances: Annotated[int, typer.Option(min=64, help="Instances of the largest size.")] = 10_240,
    steps: Annotated[int, typer.Option(min=2, help="Train steps of each run.")] = 10,
    quick: Annotated[bool, typer.Option(help="A few seconds at small sizes instead.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")] = False,
) -> None:
    """The control plane under a simulated fleet: three sizes, memory, single rebalances, limits."""
    import msgspec

    from dora_rl.observe.terminal import progress
    from dora_rl.sim.bench import QUICK, Scope, run_bench

    scope = QUICK if quick else Scope(instances=instances, steps=steps)
    with progress("bench", len(scope.sizes) + 2) as advance:
        report = run_bench(scope, advance)
    if as_json:
        typer.echo(msgspec.json.format(msgspec.json.encode(report)))
    else:
        _show(report)


@app.command()
def weights(
    device: Annotated[
        Device, typer.Option(help="cpu: a small model. cuda: the shape of Qwen3-0.6B.")
    ] = "cpu",
    steps: Annotated[int, typer.Option(min=1, help="Optimizer steps at each learning rate.")] = 20,
    directory: Annotated[
        Path | None, typer.Option(help="The disk to measure; a temporary directory is made on it.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")] = False,
) -> None:
    """Versions as deltas against full weights: bytes, publishing, adopting, on real optimizer steps."""
    from tempfile import TemporaryDirectory

    import msgspec

    from dora_rl.observe.terminal import progress, stdout
    from dora_rl.weights.bench.measure import LEARNING_RATES, run_bench

    with (
        TemporaryDirectory(dir=directory) as place,
        progress("bench", steps * len(LEARNING_RATES)) as advance,
    ):
        rows = run_bench(device, Path(place), steps=steps, advance=advance)
    if as_json:
        typer.echo(msgspec.json.format(msgspec.json.encode(rows)))
    else:
        stdout().print(_weights(rows, steps))


def _weights(rows: "list[Row]", steps: int) -> "Table":
    from dora_rl.observe.tables import table

    shown = table(
        f"{rows[0].weights_bytes / 1e6:,.1f} MB of bfloat16 weights, {steps} steps at each rate",
        "rate", ">changed\nmean", ">\nlast",
        ">delta bytes\nmean", ">\nlast", ">delta ms\nencode", ">\npublish",
        ">whole ms\nwrite", ">delta ms\nadopt", ">whole ms\nload",
        caption="changed: share of the values. delta bytes: share of the weights'. times: medians.",
    )  # fmt: skip
    for row in rows:
        shares = row.changed_mean, row.changed_last, row.delta_mean, row.delta_last
        times = row.encode_s, row.publish_s, row.write_whole_s, row.adopt_s, row.load_whole_s
        shown.add_row(
            f"{row.learning_rate:g}",
            *(f"{share:.2%}" for share in shares),
            *(f"{1e3 * time:,.1f}" for time in times),
        )
    return shown


def _show(report: "Report") -> None:
    from dora_rl.observe.terminal import stdout

    console = stdout()
    console.print(_sizes(report))
    for check in report.checks:
        verdict = "[green]met[/]" if check.is_met else "[red]missed[/]"
        text = f"{check.value:,.2f} {check.unit}, limit {check.limit:,.2f} {check.unit}"
        console.print(f"  {check.name:<45} {text:<32} {verdict}", highlight=False)


def _sizes(report: "Report") -> "Table":
    from rich.table import Table

    from dora_rl.sim.bench import log_ratio

    table = Table(title="control plane and simulator, one thread")
    for column in ("instances", "active", "trained", "inputs", "decisions", "CPU s", "us/\ntraj.",
                   "us/\ninput", "growth", "log n", "RSS\nGiB", "rebalance ms\np50  p99  max"):  # fmt: skip
        table.add_column(column, justify="right", no_wrap=True)
    smallest = report.sizes[0]
    for size in (*report.sizes, report.rebalancing):
        growth = f"{size.input_us / smallest.input_us:.2f}", f"{log_ratio(size, smallest):.2f}"
        table.add_row(*_counts(size), *growth, *_rest(size), end_section=size is report.sizes[-1])
    return table


def _counts(size: "Size") -> tuple[str, ...]:
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


def _rest(size: "Size") -> tuple[str, ...]:
    times = size.rebalance_p50_s, size.rebalance_p99_s, size.rebalance_max_s
    return f"{size.peak_rss_bytes / 2**30:.2f}", "  ".join(f"{1e3 * time:.1f}" for time in times)
