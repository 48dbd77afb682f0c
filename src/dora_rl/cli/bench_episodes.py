"""`dora bench episodes`: thousands of episodes that wait, and episodes of many turns."""

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.table import Table

    from dora_rl.bench.episodes.turns_bench import TurnsFigure
    from dora_rl.bench.episodes.waiting_bench import WaitingReport


def episodes(
    waiting: Annotated[int, typer.Option(min=64, help="Episodes that wait.")] = 10_000,
    rate: Annotated[float, typer.Option(min=1.0, help="Replies a second, of all together.")] = 200.0,
    seconds: Annotated[float, typer.Option(min=3.0, help="How long replies are measured.")] = 60.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")] = False,
) -> None:
    """Episodes that wait, KV dropped: from a reply to its next turn, commit included; and long episodes.

    A real run, but for engine and trainer, which compute nothing. Then the codec's part of a turn from 8 to
    128 turns, and what is trained on.
    """
    from pathlib import Path
    from tempfile import TemporaryDirectory

    import msgspec

    from dora_rl.bench.episodes.turns_bench import bench_turns
    from dora_rl.bench.episodes.waiting_bench import WaitingScope, bench_waiting
    from dora_rl.observe.terminal import say, stdout

    scope = WaitingScope(episodes=waiting, replies_per_s=rate, seconds=seconds)
    with TemporaryDirectory(prefix="dora-episodes-") as place:
        report = bench_waiting(scope, Path(place), say)
    turns = bench_turns(Path(report.tokenizer))
    if as_json:
        typer.echo(msgspec.json.format(msgspec.json.encode({"waiting": report, "turns": turns})))
        return
    _show(report)
    stdout().print(_table(turns))


def _show(report: "WaitingReport") -> None:
    from dora_rl.bench.episodes.waiting_bench import LATENCY_LIMIT_S, MEMORY_LIMIT_BYTES
    from dora_rl.observe.terminal import stdout

    console = stdout()
    for name, text, is_met in _lines(report):
        verdict = "" if is_met is None else "[green]met[/]" if is_met else "[red]missed[/]"
        console.print(f"  {name:<42} {text:<52} {verdict}", highlight=False)
    limits = f"limits: {1e3 * LATENCY_LIMIT_S:.0f} ms and {MEMORY_LIMIT_BYTES / 1e9:g} GB"
    console.print(f"  {limits}", highlight=False)


def _lines(report: "WaitingReport") -> list[tuple[str, str, bool | None]]:
    """Name, text and, where there is a limit, whether it is met, for each figure."""
    others = f"p50 {1e3 * report.latency_p50_s:.1f}, p90 {1e3 * report.latency_p90_s:.1f}"
    memory = f"{report.orchestrator_bytes / 1e6:,.0f} + {report.environments_bytes / 1e6:,.0f} MB"
    cpu = f"{report.orchestrator_cpu_share:.0%} of a core, {1e3 * report.orchestrator_reply_s:.2f} ms a reply"
    return [
        ("episodes that wait, at least", f"{report.waiting:,}", None),
        ("replies", f"{report.replies:,}, {report.replies_per_s:.0f} a second", None),
        ("replies in a queue at the end", f"{report.queued:,}", None),
        ("of their turns, KV dropped / held", f"{report.started:,} / {report.resumed:,}", None),
        (
            "reply to next turn, p99",
            f"{1e3 * report.latency_p99_s:.1f} ms ({others}, longest {1e3 * report.latency_max_s:.0f})",
            report.is_quick,
        ),
        ("memory of orchestrator and environments", memory, report.is_small),
        ("orchestrator, CPU", cpu, None),
    ]


def _table(figures: "tuple[TurnsFigure, ...]") -> "Table":
    from dora_rl.observe.tables import table

    shown = table(
        "groups of eight episodes, a policy that thinks in every turn",
        ">turns", "thinking", ">codec us\na turn", ">all us\na turn", ">codec's\nshare", ">training\nrows",
        ">sampled\ntokens", ">not\ntrained on", ">changed",
    )  # fmt: skip
    for each in figures:
        shown.add_row(
            str(each.turns),
            each.thinking,
            f"{1e6 * each.codec_turn_s:.0f}",
            f"{1e6 * each.turn_s:.0f}",
            f"{each.codec_share:.0%}",
            str(each.rows),
            f"{each.sampled_tokens:,}",
            f"{each.untrained_tokens:,}",
            f"{each.changed_tokens:,}",
        )
    return shown
