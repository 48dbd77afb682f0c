"""`dora serve`: a model answers whoever asks over HTTP, in OpenAI's form."""

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated

import typer

from dora_rl.core.environment_values import variable_of, with_environment
from dora_rl.core.errors import UserError

if TYPE_CHECKING:
    from dora_rl.api.model_server import Serving

_COUNTED = ("requests", "tokens")
_LEAST_KEY = 16
"""Characters that a key has at least: a short one can be tried out."""


def serve(
    model: Annotated[
        str, typer.Argument(help="A run directory, a checkpoint, a model directory, or a built-in name.")
    ],
    host: Annotated[
        str, typer.Option(help="Address to listen on; any but this machine's own lets others try keys.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 is one that is free.")] = 8000,
    public_host: Annotated[
        str | None, typer.Option(help="Name under which clients on other machines reach it.")
    ] = None,
    api_key: Annotated[
        str | None,
        typer.Option(
            metavar="env:NAME", help="The environment variable with the key; left out, one is drawn."
        ),
    ] = None,
    context: Annotated[
        int | None,
        typer.Option(min=2, help="Most tokens of a conversation with its answer; left out, at most 4096."),
    ] = None,
    chat: Annotated[
        bool | None,
        typer.Option(
            "--chat/--plain",
            help="Put messages into the chat template, or take them as lines of text; left out, as in the "
            "run, else where the model has one.",
        ),
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", help="Take up each new version of a run that goes on.")
    ] = False,
    sets: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Set a value of the recipe: devices.kind=cpu, say."),
    ] = None,
) -> None:
    """Serve a model over HTTP in OpenAI's form, until Ctrl-C: chat/completions, responses, models.

    dora serve runs/demo-1
    """
    from dora_rl.api.served_model import serve as serve_model
    from dora_rl.cli.evaluate import values_of

    key = None if api_key is None else _key(api_key)
    counts = serve_model(
        model,
        host=host,
        public_host=public_host,
        port=port,
        key=key,
        context_tokens=context,
        chat=chat,
        follow=follow,
        ready=lambda serving: _show(serving, variable_of(api_key)),
        progress="terminal",
        **values_of(sets or []),
    )
    _show_counts(counts)


def _key(given: str) -> str:
    """The key in the environment variable that is named."""
    name = variable_of(given)
    if name is None:
        raise UserError(
            "--api-key names no environment variable, and a key among a command's arguments is seen by all "
            "users of the machine",
            hint="put it into a variable: --api-key env:NAME",
        )
    key = str(with_environment({"key": given}, "--api-key")["key"])
    if len(key) < _LEAST_KEY or not key.isascii() or any(each.isspace() for each in key):
        raise UserError(
            f"the key in {name} has less than {_LEAST_KEY} characters, or one that no header can have",
            hint="leave --api-key out: a key is drawn then",
        )
    return key


def _show(serving: "Serving", variable: str | None) -> None:
    """Print how to reach the server; its key only where it is in no variable."""
    typer.echo(f"model: {serving.model}, conversations of up to {serving.context_tokens} tokens")
    typer.echo(f"url: {serving.url}")
    if variable is None:
        typer.echo(f"key: {serving.key}")
    shown = serving.key if variable is None else f"${variable}"
    typer.echo(
        f'try: curl {serving.url}/chat/completions -H "Authorization: Bearer {shown}" '
        """-d '{"messages": [{"role": "user", "content": "Hello"}]}'"""
    )
    typer.echo("Ctrl-C ends it")
    sys.stdout.flush()


def _show_counts(counts: Mapping[str, int]) -> None:
    typer.echo(", ".join(f"{counts.get(name, 0):,} {name}" for name in _COUNTED))
    for name in sorted(counts.keys() - {*_COUNTED, "retries", "sampling"}):
        typer.echo(f"'{name}' came {counts[name]:,} times; nothing is held to it")
