"""What the benches of several live runs at once have in common: their options, and how they share cores."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, TypeVar

import typer

from dora_rl.core.errors import ConfigError

Number = TypeVar("Number", int, float)

Seeds = Annotated[str, typer.Option(help="A run of each for every seed; with commas.")]
Recipe = Annotated[str, typer.Option(help="What is trained: a recipe in YAML, or a shipped one.")]
Sets = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change a value of the recipe.")
]
AtOnce = Annotated[
    int | None,
    typer.Option(
        min=1, help="Runs at a time, if several with one thread a worker; left out, one for each two cores."
    ),
]
Out = Annotated[Path, typer.Option(help="Directory for what is written: a picture, the runs' directories.")]
Keep = Annotated[bool, typer.Option("--keep", help="Keep the runs' directories.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]


def shared_machine(at_once: int | None) -> tuple[int, tuple[str, ...]]:
    """How many runs at a time, and the assignments that make each of them content with two cores."""
    from dora_rl.prepare.machine import num_cores

    processes = at_once or max(1, num_cores() // 2)
    return processes, ("devices.instance_threads=1", "devices.trainer_threads=1") if processes > 1 else ()


def numbers(text: str, kind: Callable[[str], Number], option: str) -> tuple[Number, ...]:
    """The numbers that an option names, each once; a ConfigError where one is no number, or negative."""
    try:
        found = tuple(dict.fromkeys(kind(part) for part in text.split(",") if part.strip()))
    except ValueError:
        found = ()
    if not found or min(found) < 0:
        raise ConfigError(f"{option} takes numbers with commas, not '{text}'", hint=f"such as {option} 1,2,3")
    return found
