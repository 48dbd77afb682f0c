"""`dora eval`: a model answers held-out rows, and rewards judge the answers; or it plays their episodes."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

if TYPE_CHECKING:
    from dora_rl.api.sampled_model import Evaluated


def evaluate(
    model: Annotated[
        str, typer.Argument(help="A model directory, a checkpoint, a run directory, or a built-in name.")
    ],
    recipe: Annotated[
        str | None, typer.Option(help="The recipe whose rows and rewards are used; left out, the run's.")
    ] = None,
    samples: Annotated[int | None, typer.Option(min=1, help="Responses to each row, for pass@k.")] = None,
    sets: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Change one value of the recipe."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Write every prompt with its completions and rewards as JSON lines.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the figures as one JSON object.")] = False,
) -> None:
    """Evaluate a model on the rows that a recipe holds out, else on those it trains on.

    Its answers are judged by the recipe's rewards; episodes are played as in training.

    dora eval runs/demo-1 --samples 8 --out completions.jsonl
    """
    from dora_rl import api
    from dora_rl.core.recipe.resolution import resolve_recipe

    asked = [*(sets or []), *([] if samples is None else [f"evaluation.samples={samples}"])]
    if samples is not None and samples > 1:
        asked.append("evaluation.greedy=null")
    base = None if recipe is None else resolve_recipe(recipe, [])
    found = api.evaluate(model, base, progress="terminal", **values_of(asked))
    if out is not None:
        found.write(out)
    if as_json:
        typer.echo(msgspec.json.format(msgspec.json.encode(found.figures)))
    else:
        _show(found, out)


def values_of(assignments: list[str]) -> dict[str, Any]:
    """What `KEY=VALUE` on the command line says, as keywords of a call that is given its model apart."""
    from dora_rl.core.errors import UserError
    from dora_rl.core.struct_loader import split_assignment

    values = dict(map(split_assignment, assignments))
    if "model" in values:
        raise UserError(
            f"--set model={values['model']}: the model is the command's argument",
            hint=f"name it there: {values['model']}",
        )
    return values


def _show(found: "Evaluated", out: Path | None) -> None:
    figures = found.figures
    each = "one sample" if figures.num_samples == 1 else f"{figures.num_samples} samples"
    typer.echo(f"model: {found.model}")
    typer.echo(f"rows: {figures.num_rows:,}, {each} of each")
    if not figures.is_held_out:
        typer.echo("  none are held out: these are rows of data.train; a model trained on them has seen them")
    typer.echo(f"reward: {figures.reward:.3f}")
    plays = figures.mean_turns != 1
    if plays:
        typer.echo(f"turns: {figures.mean_turns:.1f} on average")
    if len(figures.rewards) > (0 if plays else 1):
        for name, mean in figures.rewards.items():
            typer.echo(f"  {name}: {mean:.3f}")
    if figures.num_samples > 1:
        typer.echo(", ".join(f"{name} {rate:.3f}" for name, rate in figures.pass_rates.items()))
    typer.echo(
        f"tokens: {figures.mean_tokens:.1f} on average, {figures.truncated_share:.0%} cut at the limit"
    )
    if figures.num_failed:
        failure = next(text.failures[0] for row in found.rows for text in row.samples if text.failures)
        typer.echo(
            f"without a reward: {figures.num_failed:,}, the first by {failure.label}: {failure.summary}"
        )
    if out is not None:
        typer.echo(f"completions: {out}")
