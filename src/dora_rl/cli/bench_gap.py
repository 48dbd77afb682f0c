"""`dora bench gap`: engine and trainer on the same tokens."""

from typing import Annotated

import typer

from dora_rl.cli.bench_device import BenchDevice


def gap(
    device: Annotated[BenchDevice, typer.Option(help="Where engine and trainer run.")] = BenchDevice.CPU,
    shape: Annotated[str, typer.Option(help="qwen3-0.6b, smollm2-135m, tiny or tiny-moe, random.")] = "tiny",
    requests: Annotated[int, typer.Option(min=1, help="Trajectories to compare.")] = 16,
    tokens: Annotated[int, typer.Option(min=1, help="Tokens of each.")] = 128,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON list and nothing else.")] = False,
) -> None:
    """Log-probabilities of the same tokens under the same weights, from the engine and from the trainer."""
    import msgspec
    from rich.table import Table

    from dora_rl.bench.gap import gaps
    from dora_rl.observe.terminal import stdout

    found = gaps(device.value, shape, num_requests=requests, num_tokens=tokens)
    if as_json:
        typer.echo(msgspec.json.format(msgspec.json.encode(found)))
        return
    table = Table(title=f"engine against trainer, {shape}, {device.value}")
    for column in ("dtype", "experts", "tokens", "mean gap", "largest gap", "mean logprob"):
        table.add_column(column, justify="right")
    for each in found:
        table.add_row(
            each.dtype,
            "the engine's" if each.is_replayed else "its own",
            f"{each.num_tokens:,}",
            f"{each.mean:.2e}",
            f"{each.max:.2e}",
            f"{each.mean_logprob:.2f}",
        )
    stdout().print(table)
