"""`dora generate`: a model answers a prompt."""

import sys
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from dora_rl.core.errors import UserError
from dora_rl.core.visible_text import visible


def generate(
    model: Annotated[
        str, typer.Argument(help="A model directory, a checkpoint, a run directory, or a built-in name.")
    ],
    prompt: Annotated[str | None, typer.Argument(help="The prompt; else standard input is read.")] = None,
    file: Annotated[
        Path | None, typer.Option(exists=True, dir_okay=False, help="A text file that is the prompt.")
    ] = None,
    samples: Annotated[int, typer.Option(min=1, help="How many answers.")] = 1,
    temperature: Annotated[
        float | None, typer.Option(min=0.0, help="0 is greedy; left out, 0 for one answer, else 1.")
    ] = None,
    max_tokens: Annotated[int | None, typer.Option(min=1, help="Most tokens of an answer.")] = None,
    chat: Annotated[
        bool | None,
        typer.Option(
            "--chat/--plain",
            help="Put the prompt into the chat template, or not; left out, where the model has one.",
        ),
    ] = None,
    sets: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Set a value of the recipe: devices.kind=cpu, say."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the answers as one JSON object.")] = False,
) -> None:
    """Let a model answer a prompt: from the argument, a file or standard input.

    dora generate runs/demo-1 "d>k:"
    """
    from dora_rl import api
    from dora_rl.cli.evaluate import values_of

    if prompt is not None and file is not None:
        raise UserError("the prompt is given twice, as an argument and by --file", hint="give one of them")
    text = prompt if prompt is not None else _read(file)
    if not text.strip():
        raise UserError("the prompt is empty", hint='give it as an argument: dora generate MODEL "d>k:"')
    asked = values_of([*(sets or []), f"evaluation.samples={samples}"])
    if temperature is not None:
        asked |= {"evaluation.at_temperature": temperature} if temperature else {"evaluation.greedy": True}
    if max_tokens is not None:
        asked["max_new_tokens"] = max_tokens
    if chat is not None:
        asked["wrap_in_chat"] = chat
    (row,) = api.generate(model, text, progress="terminal", **asked)
    if as_json:
        typer.echo(msgspec.json.format(msgspec.json.encode(row)))
        return
    for number, sample in enumerate(row.samples):
        if number:
            typer.echo("---")
        # What a model wrote may hold commands of the terminal; a file or another program gets it as it is.
        typer.echo(visible(sample.text) if sys.stdout.isatty() else sample.text)


def _read(file: Path | None) -> str:
    """The prompt in a file, or from standard input."""
    if file is None and sys.stdin.isatty():
        typer.echo("the prompt, to its end with Ctrl-D:", err=True)
    try:
        return sys.stdin.read() if file is None else file.read_text("utf-8")
    except UnicodeDecodeError as error:
        source = "standard input" if file is None else str(file)
        raise UserError(f"{source} is not text in UTF-8", hint="write the prompt anew as UTF-8") from error
