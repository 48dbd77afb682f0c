"""The terminal: results go to stdout, progress to stderr and only where somebody watches."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text

from dora_rl.core.lasting_output import lasting
from dora_rl.core.visible_text import one_line, visible

_PIPED_WIDTH = 150
"""Columns of a table that is written to a pipe or a file: nothing there wraps."""

Advance = Callable[[str], None]
"""Called when one more unit of work is done, with what is being done next."""


def stdout() -> Console:
    """The console for results: as wide as the terminal, or wide enough for a table in a pipe."""
    console = Console()
    return console if console.is_terminal else Console(width=_PIPED_WIDTH)


def stderr(**choices: Any) -> Console:
    """The console for what is no result, and may be lost where it cannot be written."""
    return Console(file=lasting(sys.stderr), stderr=True, **choices)


def say(text: str) -> None:
    """Print a remark that is no result, to stderr; nothing in it is markup, and nothing acts."""
    stderr(soft_wrap=True, highlight=False, markup=False).print(visible(text))


def fact(console: Console, label: str, text: str, *, width: int, style: str = "dim") -> None:
    """Print a line of a summary: a label, and text that is shown as it is."""
    console.print(Text.assemble((f"{one_line(label):<{width}}", style), visible(text)), soft_wrap=True)


@contextmanager
def progress(what: str, total: int) -> Iterator[Advance]:
    """Show a progress bar on stderr until the block ends; the yielded function advances it."""
    console = stderr()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(what, total=total)
        yield lambda text: bar.update(task, advance=1, description=f"{what} {text}".rstrip())
