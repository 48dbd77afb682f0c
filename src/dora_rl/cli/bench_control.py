"""`dora bench control`: the control plane under a simulated fleet."""

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.table import Table

    from dora_rl.bench.control_speed import ControlReport, FleetRun


def control(
    instances: Annotated[int, typer.Option(min=64, help="Instances of the largest size.")] = 10_240,
    steps: Annotated[int, typer.Option(min=2, help="Train steps of each run.")] = 10,
    quick: Annotated[bool, typer.Option(help="A few seconds at small sizes instead.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")] = False,
) -> None:
    """The control plane under a simulated fleet: three sizes, memory, single rebalances, limits."""
    import msgspec

    from dora_rl.bench.control_speed import QUICK, FleetScope, bench_control
    from dora_rl.observe.terminal import say

    report = bench_control(QUICK if quick else FleetScope(instances=instances, steps=steps), say)
    if as_json:
        typer.echo(msgspec.json.format(msgspec.json.encode(report)))
    else:
        _show(report)


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

    from dora_rl.bench.control_speed import log_ratio

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
