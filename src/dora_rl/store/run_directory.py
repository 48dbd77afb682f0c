"""A run's directory: where everything is, who may write it, and whether the run is over.

    recipe.yaml      the resolved recipe          checkpoints/   Hugging Face directories
    journal.sqlite   what must survive            versions/      published weights
    events.jsonl     inputs and decisions         logs/          output of the processes
    metrics/         what trackers write          finished.json  there once the run is over
    epochs/          a file for each time that a process began to lead the run

The directory appears whole, and never over an earlier run. Whoever only reads needs a `RunLayout`;
whoever runs holds a `RunDirectory`, and with it the lock.
"""

from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec

from dora_rl.core.errors import ConfigError
from dora_rl.core.history import encode_header
from dora_rl.core.recipe import Recipe
from dora_rl.core.record import Record
from dora_rl.core.struct_loader import build, to_yaml
from dora_rl.core.yaml_text import load_yaml
from dora_rl.store.durable import new_directory, write_atomically
from dora_rl.store.errors import RunError
from dora_rl.store.journal import Journal
from dora_rl.store.run_lock import RunLock
from dora_rl.store.storage import is_shared

_LOST_RECIPE = "put it back from a copy, or copy what stands in setup.json under `recipe`"


class RunLayout(Record, frozen=True):
    """The paths of a run's files in its directory."""

    root: Path

    @property
    def recipe(self) -> Path:
        return self.root / "recipe.yaml"

    @property
    def journal(self) -> Path:
        return self.root / "journal.sqlite"

    @property
    def events(self) -> Path:
        return self.root / "events.jsonl"

    @property
    def metrics(self) -> Path:
        return self.root / "metrics"

    @property
    def checkpoints(self) -> Path:
        return self.root / "checkpoints"

    @property
    def versions(self) -> Path:
        return self.root / "versions"

    @property
    def logs(self) -> Path:
        return self.root / "logs"

    @property
    def lock(self) -> Path:
        return self.root / "lock"

    @property
    def epochs(self) -> Path:
        return self.root / "epochs"

    @property
    def finished(self) -> Path:
        return self.root / "finished.json"

    def read_recipe(self) -> Recipe:
        """The recipe the run was started with."""
        if not self.recipe.is_file() and self.journal.is_file():
            raise RunError(
                f"{self.recipe} is missing",
                hint=_LOST_RECIPE,
            )
        if not self.recipe.is_file():
            around = [place for place in self.root.parents[:2] if RunLayout(root=place).journal.is_file()]
            hint = f"it is inside a run: give {around[0]}" if around else "check the path of the run"
            raise RunError(f"{self.root} is no run directory", hint=hint)
        try:
            return build(Recipe, load_yaml(self.recipe), str(self.recipe))
        except ConfigError as error:
            told = error.message if str(self.recipe) in error.message else f"{self.recipe}: {error.message}"
            raise ConfigError(told, hint="; or ".join(filter(None, (error.hint, _LOST_RECIPE)))) from error

    @property
    def is_finished(self) -> bool:
        """Whether the run is over."""
        return self.finished.exists()


class RunDirectory:
    """A run directory that this process holds the lock of."""

    def __init__(self, root: Path) -> None:
        self.layout = RunLayout(root=root)
        self.recipe = self.layout.read_recipe()
        self._lock = RunLock(self.layout.lock, root)

    @classmethod
    def create(
        cls, root: Path, recipe: Recipe, fill: Callable[[Path], None] = lambda directory: None
    ) -> Self:
        """Create the directory of a new run; an error if one is there already and not empty.

        `fill` puts in what else the run needs, before the directory has its name.
        """
        try:
            with new_directory(root) as directory:
                layout = RunLayout(root=directory)
                layout.recipe.write_text(to_yaml(recipe), encoding="utf-8")
                layout.events.write_bytes(encode_header(recipe))
                shared = is_shared(directory, recipe.run.storage)
                Journal.create(layout.journal, recipe, is_shared=shared).close()
                for made in (layout.metrics, layout.checkpoints, layout.versions, layout.logs):
                    made.mkdir()
                fill(directory)
        except FileExistsError as error:
            raise RunError(
                f"{root} exists and is not empty", hint="resume the run in it, or choose another directory"
            ) from error
        except OSError as error:
            raise RunError(f"cannot write {root}: {error.strerror}", hint="choose another place") from error
        return cls(root)

    @classmethod
    def resume(cls, root: Path) -> Self:
        """Take over the directory of a run that was cut short; an error if that run is finished."""
        run = cls(root)
        if run.layout.is_finished:
            run.close()
            raise RunError(
                f"the run in {root} is finished: there is nothing to resume", hint="start another run"
            )
        return run

    def finish(self, summary: dict[str, Any]) -> None:
        """Mark the run as over; `summary` is what a reader should see first."""
        write_atomically(self.layout.finished, msgspec.json.format(msgspec.json.encode(summary)) + b"\n")

    def close(self) -> None:
        self._lock.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
