"""What a run says while it goes on: on a terminal, in a notebook, or nowhere."""

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Literal, get_args

from dora_rl.core.errors import ConfigError
from dora_rl.core.history import Event, Watcher
from dora_rl.core.lasting_output import lasting
from dora_rl.core.recipe import Recipe
from dora_rl.core.visible_text import visible
from dora_rl.observe.live.notebook import shown_in_notebook
from dora_rl.observe.live.view import shown
from dora_rl.observe.terminal import say

Progress = Literal["auto", "terminal", "notebook", "none"]


class Teller:
    """Shows a run's messages and progress where the caller wants them: terminal, notebook or nowhere."""

    def __init__(self, progress: Progress | bool) -> None:
        if isinstance(progress, bool):
            progress = "auto" if progress else "none"
        if progress not in get_args(Progress):
            raise ConfigError(
                f"progress = {progress!r} is not known", hint=f"one of: {', '.join(get_args(Progress))}"
            )
        self.doing: Callable[[str], None] = lambda text: None
        """Shows what is done before the run's first event, where the run is shown, until that is over."""
        self._kind = ("notebook" if in_notebook() else "terminal") if progress == "auto" else progress

    def say(self, text: str) -> None:
        """Print a sentence for whoever waits, while no screen is drawn."""
        if self._kind != "none":
            say(text)

    @property
    def tell(self) -> Callable[[str], None]:
        """A function that prints a sentence above the screen that may be drawn meanwhile."""
        return (lambda text: None) if self._kind == "none" else _print_to_stderr

    @contextmanager
    def shown(
        self, title: str, recipe: Recipe, past: Iterable[Event] | None, rewards_log: str
    ) -> Iterator[list[Watcher]]:
        """Watchers that show the run until the block ends."""
        match self._kind:
            case "none":
                yield []
            case "notebook":
                with shown_in_notebook(title, recipe, past, rewards_log=rewards_log) as output:
                    self.doing = output.note
                    yield [output.watch]
            case _:
                with shown(title, recipe, past, rewards_log=rewards_log) as view:
                    self.doing = view.note
                    yield [view.watch]


def in_notebook() -> bool:
    """Whether this process is the kernel of a notebook, which can show more than lines."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return shell is not None and type(shell).__name__ == "ZMQInteractiveShell"


def _print_to_stderr(text: str) -> None:
    print(visible(text), file=lasting(sys.stderr), flush=True)
