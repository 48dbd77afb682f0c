"""`dora bench weights`: versions as deltas against full weights."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dora_rl.cli.bench_device import BenchDevice

if TYPE_CHECKING:
    from rich.table import Table

    from dora_rl.bench.delta_figures import DeltaFigures


def weights(
    device: Annotated[
        BenchDevice, typer.Option(help="cpu: a small model. cuda: the shape of Qwen3-0.6B.")
    ] = BenchDevice.CPU,
    steps: Annotated[int, typer.Option(min=1, help="Optimizer steps at each learning rate.")] = 20,
    directory: Annotated[
        Path | None, typer.Option(help="The disk to measure; a temporary directory is made on it.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")] = False,
) -> None:
    """Versions as deltas against full weights: bytes, publishing, adopting, on real optimizer steps."""
    from tempfile import TemporaryDirectory

    import msgspec

    from dora_rl.bench.delta_figures import LEARNING_RATES, run_bench
    from dora_rl.observe.terminal import progress, stdout

    with (
        TemporaryDirectory(dir=directory) as place,
        progress("bench", steps * len(LEARNING_RATES)) as advance,
    ):
        rows = run_bench(device.value, Path(place), steps=steps, advance=advance)
    if as_json:
        typer.echo(msgspec.json.format(msgspec.json.encode(rows)))
    else:
        stdout().print(_weights(rows, steps))


def _weights(rows: "list[DeltaFigures]", steps: int) -> "Table":
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
