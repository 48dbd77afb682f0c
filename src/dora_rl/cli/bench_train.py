"""`dora bench train`: how fast the trainer is, against the device's peak and beside transformers."""

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.table import Table

    from dora_rl.bench.train.timed_steps import TrainTiming
    from dora_rl.bench.train.train_bench import TrainReport


PHASES = ("forward", "head", "backward", "optimizer", "other")


def train(
    device: Annotated[str, typer.Option(help="cuda, or cpu with the tiny shape.")] = "cuda",
    shapes: Annotated[str, typer.Option(help="0.6B, 1.7B, tiny; several with commas.")] = "0.6B,1.7B",
    micro_batch_tokens: Annotated[int, typer.Option(min=1, help="Tokens of one pass.")] = 16_384,
    sequences: Annotated[int, typer.Option(min=4, help="Sequences of a step.")] = 256,
    steps: Annotated[int, typer.Option(min=1, help="Timed steps of each row.")] = 2,
    baseline: Annotated[bool, typer.Option(help="Also run transformers.")] = True,
    variants: Annotated[bool, typer.Option(help="Also run the alternatives to the default.")] = False,
    profile: Annotated[bool, typer.Option(help="Also list the kernels that take longest.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")] = False,
) -> None:
    """Whole train steps on random weights and lengths with a long tail, beside the same in transformers."""
    import os

    # Micro-batches differ in size; segments that can grow keep the cache from being cut into pieces.
    os.environ.setdefault("PYTORCH_ALLOC_CONF", "expandable_segments:True")
    import msgspec

    from dora_rl.bench.sequence_lengths import SequenceLengths
    from dora_rl.bench.train.train_bench import TrainBench, run_bench
    from dora_rl.observe.terminal import stdout

    scope = TrainBench(
        shapes=tuple(shapes.split(",")),
        device=device,
        lengths=SequenceLengths(count=sequences),
        micro_batch_tokens=micro_batch_tokens,
        steps=steps,
        has_baseline=baseline,
        has_variants=variants,
        is_profiled=profile,
    )
    report = run_bench(scope, tell=lambda row: None if as_json else _tell(row))
    if as_json:
        typer.echo(msgspec.json.format(msgspec.json.encode(report)))
    else:
        stdout().print(_table(report))


def _tell(row: "TrainTiming") -> None:
    """Print a row as soon as it is measured, so that a run cut short has shown something."""
    phases = "  ".join(f"{phase} {1e3 * seconds:.0f} ms" for phase, seconds in row.phases_s.items())
    speed = f"{row.tokens_per_s:,.0f} tokens/s, {row.flops_per_s / 1e12:.1f} TFLOP/s"
    typer.echo(f"{row.shape} {row.name}: {row.failure or f'{speed}; {phases}'}", err=True)
    for kernel in row.kernels:
        typer.echo(f"  {1e3 * kernel.total_s:8.2f} ms {kernel.count:6} x {kernel.name[:110]}", err=True)


def _table(report: "TrainReport") -> "Table":
    from rich.table import Table

    table = Table(
        title=f"{report.device}: {report.peak_flops_per_s / 1e12:,.1f} TFLOP/s in a large product; a step is "
        f"{report.num_sequences} sequences, {report.num_tokens:,} tokens"
    )
    for column in ("shape", "what", "tokens/s", "of peak", "memory\nGiB", "step ms", *PHASES, "loss"):
        table.add_column(column, justify="left" if column in ("shape", "what") else "right", no_wrap=True)
    for row in report.rows:
        table.add_row(row.shape, row.name, *_cells(row, report.peak_flops_per_s))
    return table


def _cells(row: "TrainTiming", peak: float) -> tuple[str, ...]:
    if row.failure:
        return (row.failure[:60],)
    return (
        f"{row.tokens_per_s:,.0f}",
        f"{row.flops_per_s / peak:.1%}",
        f"{row.peak_bytes / 2**30:.1f}",
        f"{1e3 * row.step_s:.0f}",
        *(f"{1e3 * row.phases_s.get(phase, 0.0):.0f}" for phase in PHASES),
        f"{row.loss:.5f}",
    )
