"""`dora cluster check`: what a Ray cluster has for a run, and whether its nodes can do what a run needs."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from dora_rl.launch.cluster_check import NodeReport

app = typer.Typer(name="cluster", no_args_is_help=True)

_MOST_SKEW_S = 1.0
"""Difference of clocks from which logs of several machines are hard to read; nothing else depends on it."""


@app.callback()
def cluster() -> None:
    """Look at a Ray cluster."""


@app.command()
def check(
    ray: Annotated[str, typer.Option(help="The cluster: `auto`, or HOST:PORT.")] = "auto",
    directory: Annotated[Path, typer.Option(help="Where runs are to be, on storage that all share.")] = Path(
        "runs"
    ),
    host: Annotated[
        str | None, typer.Option(help="The address of this machine that nodes connect to.")
    ] = None,
) -> None:
    """Start a probe on every node and say what it sees: the shared directory, locks, clock, link, software.

    Ends with 1 where a node could not take part in a run.
    """
    from contextlib import closing

    from dora_rl.launch.cluster import RayLaunch
    from dora_rl.launch.cluster_check import check_nodes

    with closing(RayLaunch(ray, host=host)) as launch:
        reports = check_nodes(launch, directory.absolute())
        typer.echo(f"workers dial {launch.host}; shared directory: {directory.absolute()}")
    for report in reports:
        typer.echo(_line(report))
        for problem in _problems(report):
            typer.echo(f"  {problem}")
    if not reports:
        typer.echo("no node has a CPU for a worker")
    versions = {report.software for report in reports if report.software}
    if len(versions) > 1:
        typer.echo(f"nodes differ in what they run: {'; '.join(sorted(versions))}")
    if not reports or any(report.problem or not report.sees_directory for report in reports):
        raise typer.Exit(1)


def _line(report: "NodeReport") -> str:
    node = report.node
    gpus = f", {node.gpus:g} GPUs {node.gpu_kind or ''}".rstrip() if node.gpus else ""
    has = f"{node.id[:12]} {node.host}: {node.cpus:g} CPUs{gpus}, {node.memory_bytes / 2**30:.0f} GiB"
    if report.problem:
        return has
    link = f"round trip {1e3 * report.round_trip_s:.2f} ms, {report.bytes_per_s / 1e9:.2f} GB/s"
    return f"{has}; {link}, clock {1e3 * report.clock_skew_s:+.1f} ms, {report.software}"


def _problems(report: "NodeReport") -> list[str]:
    if report.problem:
        return [f"missing: no probe there: {report.problem}"]
    found = [] if report.sees_directory else ["missing: it does not see the shared directory"]
    if report.sees_directory and not report.keeps_locks:
        found.append("note: a lock held here did not keep it out; the epochs of a run still do")
    if abs(report.clock_skew_s) > _MOST_SKEW_S:
        found.append("note: its clock differs; times in logs of several machines will not fit together")
    return found
