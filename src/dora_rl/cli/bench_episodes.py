"""`dora bench episodes`: thousands of episodes that wait, and how fast each goes on once its reply is there."""

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from dora_rl.bench.episodes.waiting_bench import WaitingReport


def episodes(
    waiting: Annotated[int, typer.Option(min=64, help="Episodes that wait.")] = 10_000,
    rate: Annotated[float, typer.Option(min=1.0, help="Replies a second, of all together.")] = 200.0,
    seconds: Annotated[float, typer.Option(min=3.0, help="How long replies are measured.")] = 60.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")] = False,
) -> None:
    """Episodes that wait for their environments, KV dropped: from a reply to its next turn, commit included.

    A real run, but for engine and trainer, which compute nothing.
    """
    from pathlib import Path
    from tempfile import TemporaryDirectory

    import msgspec

    from dora_rl.bench.episodes.waiting_bench import WaitingScope, bench_waiting
    from dora_rl.observe.terminal import say

    scope = WaitingScope(episodes=waiting, replies_per_s=rate, seconds=seconds)
    with TemporaryDirectory(prefix="dora-episodes-") as place:
        report = bench_waiting(scope, Path(place), say)
    if as_json:
        typer.echo(msgspec.json.format(msgspec.json.encode(report)))
    else:
        _show(report)


def _show(report: "WaitingReport") -> None:
    from dora_rl.bench.episodes.waiting_bench import LATENCY_LIMIT_S, MEMORY_LIMIT_BYTES
    from dora_rl.observe.terminal import stdout

    console = stdout()
    is_quick, is_small = report.latency_p99_s <= LATENCY_LIMIT_S, report.total_bytes <= MEMORY_LIMIT_BYTES
    rest = f"p50 {1e3 * report.latency_p50_s:.1f}, p90 {1e3 * report.latency_p90_s:.1f}"
    lines = (
        ("episodes that wait, at least", f"{report.waiting:,}", None),
        ("replies", f"{report.replies:,}, {report.replies_per_s:.0f} a second", None),
        ("of their turns, KV dropped / held", f"{report.started:,} / {report.resumed:,}", None),
        (
            "reply to next turn, p99",
            f"{1e3 * report.latency_p99_s:.1f} ms ({rest}, longest {1e3 * report.latency_max_s:.0f})",
            is_quick,
        ),
        (
            "memory of orchestrator and environments",
            f"{report.orchestrator_bytes / 1e6:,.0f} + {report.environments_bytes / 1e6:,.0f} MB",
            is_small,
        ),
        (
            "orchestrator, CPU",
            f"{report.orchestrator_cpu_share:.0%} of a core, {1e3 * report.orchestrator_reply_s:.2f} ms a reply",
            None,
        ),
    )
    for name, text, is_met in lines:
        verdict = "" if is_met is None else "[green]met[/]" if is_met else "[red]missed[/]"
        console.print(f"  {name:<42} {text:<52} {verdict}", highlight=False)
    console.print(
        f"  limits: {1e3 * LATENCY_LIMIT_S:.0f} ms and {MEMORY_LIMIT_BYTES / 1e9:g} GB", highlight=False
    )
