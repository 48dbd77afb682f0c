"""A Python object by its written name: `module:object`, `module.object`, `file.py:object` or `object:LABEL`.

What is called `object:LABEL` has no place that a name could say, as a closure of a notebook: it travels as
bytes beside the recipe. Code that cannot be imported is the user's mistake, and the error says in which file
and line. Knows no torch; what a module of the user's imports is its own matter.
"""

import importlib
import importlib.util
import pickle
import sys
import traceback
from collections.abc import Mapping
from difflib import get_close_matches
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

from dora_rl.core.errors import UserError

OBJECT = "object:"
"""Prefix of the name of an object that no file or module has."""

Objects = Mapping[str, bytes]
"""Objects named `object:LABEL`, by label, as the bytes of cloudpickle."""


def load_named(name: str, objects: Objects | None = None) -> Any:
    """The Python object of a written name, imported or from `objects`; a UserError if there is none."""
    if name.startswith(OBJECT):
        return _sent(name, objects or {})
    place, _, attribute = name.rpartition(":" if ":" in name else ".")
    if not place or not attribute:
        raise UserError(
            f"'{name}' does not name a Python object", hint="write module:object or file.py:object"
        )
    module = _file_module(Path(place)) if place.endswith(".py") else _named_module(place)
    return _attribute(module, attribute, place)


def is_place(name: str) -> bool:
    """Whether a name says where a Python object is, as against the name of something built in."""
    return ":" in name or "." in name


def import_place(name: str) -> str:
    """The file or module part of an object's name."""
    return name.rpartition(":")[0] or name


def _sent(name: str, objects: Objects) -> Any:
    """The object that came as bytes under the label of `object:LABEL`."""
    label = name.removeprefix(OBJECT)
    if label not in objects:
        raise UserError(
            f"'{name}' is an object of the Python program that started the run, and is not at hand here",
            hint="go on from Python, where it can be given again: dora_rl.resume",
        )
    try:
        return pickle.loads(objects[label])
    except Exception as error:  # whatever the object's own parts raise when they are put together
        raise UserError(
            f"'{name}' cannot be put together in this process: {type(error).__name__}: {error}",
            hint="have it in a file of its own, and name it file.py:object",
        ) from error


def optional_module(name: str, *, needed_for: str, install: str) -> Any:
    """Import a module of an optional package, or raise a UserError that says how to install it."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise UserError(
            f"{needed_for} needs the package '{install}': {error}", hint=f"pip install {install}"
        ) from error


def did_you_mean(name: str, known: list[str], kind: str) -> str:
    """A hint with the known name nearest to `name`, or with all known names."""
    near = get_close_matches(name, known, n=1)
    return f"did you mean '{near[0]}'?" if near else f"{kind}: {', '.join(known) or 'none'}"


def _named_module(name: str) -> ModuleType:
    # The working directory is where a user's own modules are, also in a process started with -m.
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and f"{name}.".startswith(f"{error.name}."):
            raise UserError(
                f"there is no module '{name}'", hint="check the name, or give a path: file.py:object"
            ) from error
        raise _import_error(name, error) from error
    except (Exception, SystemExit) as error:  # whatever the user's module raises
        raise _import_error(name, error) from error


def _file_module(path: Path) -> ModuleType:
    if not path.is_file():
        raise UserError(f"there is no file {path}", hint="check the path")
    name = f"dora_user_{path.resolve().as_posix().encode().hex()}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None, f"{path} ends with .py"
    return _executed(spec, path)


def _executed(spec: ModuleSpec, path: Path) -> ModuleType:
    module = importlib.util.module_from_spec(spec)
    assert spec.loader is not None, f"{path} has source"
    # Files beside it can be imported, but shadow nothing.
    sys.path.append(str(path.resolve().parent))
    # Registered before it runs, as an import does: dataclasses and pickling look their module up.
    sys.modules[spec.name] = module
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:  # whatever the user's file raises
        del sys.modules[spec.name]
        raise _import_error(str(path), error) from error
    return module


def import_command(place: str) -> str:
    """The shell command that imports a file or a module by itself, to see its error."""
    return f"python {place}" if place.endswith(".py") else f"python -c 'import {place}'"


def _import_error(name: str, error: Exception | SystemExit) -> UserError:
    where = _where(error)
    told = f"{where}: {type(error).__name__}: {error}" if where else f"{type(error).__name__}: {error}"
    return UserError(f"{name} cannot be imported: {told}", hint=_import_hint(name, error, where or name))


def _import_hint(name: str, error: Exception | SystemExit, where: str) -> str:
    """The hint what to change, and where, about code of the user's that cannot be imported."""
    shown = import_command(name)
    match error:
        case ModuleNotFoundError(name=str(missing)):
            # A module's name is not always that of its package: which to install is the user's to know.
            return f"install the package that has '{missing}', or mend {where}, if it is a file of yours"
        case SyntaxError():
            return f"mend {where}; `{shown}` shows the place"
        case SystemExit():
            return f"it ends the process at {where}: have that under `if __name__ == '__main__':`"
    return f"mend {where}; `{shown}` shows the whole traceback"


def _where(error: Exception | SystemExit) -> str:
    """The place, `file, line n`, of an error in the user's own code; empty if none of its lines is."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}, line {error.lineno}"
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if frame.filename != __file__ and "importlib" not in frame.filename
    ]
    return f"{frames[-1].filename}, line {frames[-1].lineno}" if frames else ""


def _attribute(module: ModuleType, name: str, place: str) -> Any:
    if not hasattr(module, name):
        known = [word for word in vars(module) if not word.startswith("_")]
        raise UserError(f"{place} has no '{name}'", hint=did_you_mean(name, known, "it has"))
    return getattr(module, name)
