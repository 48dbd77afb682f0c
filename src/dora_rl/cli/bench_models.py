"""`dora bench models`: which types of models train and generate here, and by whom."""

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from dora_rl.bench.models import ModelRow

_COLUMNS = (
    "type",
    "trains",
    "trainer and engine",
    "mean gap",
    "largest",
    "mean logprob",
    "tokens/s",
    "trained/s",
)


def models(
    types: Annotated[
        str | None, typer.Option(help="Model types with commas, as transformers calls them; left out, all.")
    ] = None,
    requests: Annotated[int, typer.Option(min=2, help="Responses generated at once; even.")] = 8,
    tokens: Annotated[int, typer.Option(min=2, help="Tokens of each.")] = 48,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON list and nothing else.")] = False,
) -> None:
    """Tiny random models of each type: generate, train a step, generate from the result, on the CPU."""
    import msgspec
    from rich.table import Table

    from dora_rl.bench.models import measured, settled_types
    from dora_rl.observe.terminal import stdout

    rows = []
    for model_type in settled_types(types):
        rows.append(measured(model_type, num_requests=requests, num_tokens=tokens))
        if not as_json:
            typer.echo(_told(rows[-1]), err=True)
    if as_json:
        typer.echo(msgspec.json.format(msgspec.json.encode(rows)))
        return
    table = Table(title=f"tiny models in bfloat16, {requests} responses of {tokens} tokens, one thread")
    for column in _COLUMNS:
        table.add_column(column, justify="left" if column in ("type", "trainer and engine") else "right")
    for row in rows:
        table.add_row(row.model_type, *_cells(row))
    stdout().print(table)


def _told(row: "ModelRow") -> str:
    return f"{row.model_type}: {row.failure or ', '.join(_cells(row))}"


def _cells(row: "ModelRow") -> tuple[str, ...]:
    if row.failure:
        return "no", row.failure[:60]
    by = row.computing if row.is_packed else f"{row.computing}, one after the other"
    return (
        "yes" if row.trains else "no",
        by,
        f"{row.gap_mean:.1e}",
        f"{row.gap_max:.1e}",
        f"{row.mean_logprob:.2f}",
        f"{row.generated_per_s:,.0f}",
        f"{row.trained_per_s:,.0f}",
    )
