"""The directory of a run: chosen, checked and claimed before anything is prepared."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dora_rl.core.errors import ConfigError
from dora_rl.core.recipe import Recipe
from dora_rl.store.claim import claimed, next_free

_ELSEWHERE = "choose another directory: --set run.directory=..."


@contextmanager
def run_directory(recipe: Recipe, name: str, *, is_dry: bool = False) -> Iterator[Path]:
    """The run directory asked for, else the next free `runs/NAME-1`, `-2`, ..., this run's alone."""
    # In full, for the working directory may be another one when the claim ends.
    place = Path("runs").absolute()
    if recipe.run.directory is not None:
        path = Path(recipe.run.directory)
        _check_writable(path)
        _check_free(path)
        yield path.absolute()
    elif is_dry:
        _check_writable(place)
        yield next_free(place, name).absolute()
    else:
        _check_writable(place)
        with claimed(place, name) as path:
            yield path.absolute()


def _check_free(path: Path) -> None:
    if path.is_dir() and any(path.iterdir()):
        raise ConfigError(
            f"run.directory {path} exists and is not empty",
            hint=f"resume the run in it with `dora train --resume {path}`, or choose another directory",
        )


def _check_writable(path: Path) -> None:
    """Refuse a directory that cannot be written before anything is planned; writing may still fail."""
    nearest = next(place for place in (path, *path.absolute().parents) if os.path.lexists(place))
    if not nearest.is_dir():
        raise ConfigError(f"run directory {path} cannot be made: {nearest} is a file", hint=_ELSEWHERE)
    if not os.access(nearest, os.R_OK | os.W_OK | os.X_OK):
        raise ConfigError(
            f"run directory {path} cannot be made: {nearest} cannot be written", hint=_ELSEWHERE
        )
