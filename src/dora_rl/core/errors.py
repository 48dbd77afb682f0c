"""What can go wrong and be said in one sentence. Invariants are not here: they are asserts.

    DoraError              a failure with a message and, where one exists, a way out
    └── UserError          the input is wrong; exit code 2
        ├── ConfigError    a recipe or an override is wrong
        │   └── NoRoom     what a recipe asks for needs more memory than there is
        └── ModelError     a model directory is wrong, or of a kind that is not supported
            └── NotNative  a model that the native decoder does not compute

The command line turns a DoraError into `error: ...` and `hint: ...`; anything else is a bug and keeps its
traceback.
"""

import errno
import json
import re
from importlib.metadata import PackageNotFoundError, distribution
from typing import ClassVar
from urllib.parse import urlsplit
from urllib.request import url2pathname

NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
"""Error numbers with which the system reports a full disk or an exhausted quota."""


class DoraError(Exception):
    """A failure worth a sentence, and a hint when there is something the reader can do."""

    exit_code: ClassVar[int] = 1
    is_lasting: ClassVar[bool] = False
    """Whether another try would end in the same way, until somebody does something about it."""

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    @property
    def hint(self) -> str | None:
        """What the reader can do, as `--set` would have it; a traceback shows it as a note, in keywords."""
        return self._hint

    @hint.setter
    def hint(self, hint: str | None) -> None:
        self._hint = hint
        self.__notes__ = [] if hint is None else [f"hint: {in_keywords(hint)}"]


class UserError(DoraError):
    """An error in what the user gave: the run cannot work with it."""

    exit_code = 2
    is_lasting = True


class ConfigError(UserError):
    """A recipe, or an override of it, breaks a rule."""


class NoRoom(ConfigError):
    """What a recipe asks for does not fit into memory; whoever plans the run knows what would."""


class ModelError(UserError):
    """A model directory is incomplete, damaged, at odds with itself, or not of a supported kind."""


class NotNative(ModelError):
    """A model directory is in order, but the native decoder does not compute such a model."""


_ASSIGNMENT = re.compile(r"(?:--set )?\b([a-z_]+)((?:\.[a-z_0-9]+)*)=([^\s,;()`?{\[]+)")
_CONSTANTS = {"true": "True", "false": "False", "null": "None", "...": "..."}


def in_keywords(hint: str) -> str:
    """A hint with `a.b=c` written as a caller of `train` writes it: `a={"b": c}`."""

    def keyword(found: re.Match[str]) -> str:
        section, path, value = found.groups()
        stop = "." if value.endswith(".") and value != "..." else ""
        value = value.removesuffix(stop) if stop else value
        if not found[0].startswith("--set") and not path:
            return found[0]
        shown = _CONSTANTS.get(value) or (value if _is_number(value) else f'"{value}"')
        for key in reversed(path.split(".")[1:]):
            shown = f'{{"{key}": {shown}}}'
        return f"{section}={shown}{stop}"

    return _ASSIGNMENT.sub(keyword, hint)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def install_hint(extra: str) -> str:
    """The command that installs an optional extra, from where this installation came."""
    return f"pip install {_source(extra)}"


def _source(extra: str) -> str:
    """What pip is given: the index's package, or the clone or archive that was installed (PEP 610)."""
    try:
        found = distribution("dora-rl").read_text("direct_url.json")
    except PackageNotFoundError:
        return f"'.[{extra}]', in the clone"
    origin = json.loads(found) if found else {}
    url, directory = origin.get("url", ""), origin.get("dir_info")
    if directory is not None:
        path = url2pathname(urlsplit(url).path)
        return f"-e '{path}[{extra}]'" if directory.get("editable") else f"'{path}[{extra}]'"
    if vcs := origin.get("vcs_info"):
        url = f"{vcs['vcs']}+{url}@{vcs['commit_id']}"
    return f"'dora-rl[{extra}] @ {url}'" if url else f"'dora-rl[{extra}]'"


EXTRA_OF = dict.fromkeys(("jinja2", "safetensors", "tokenizers", "torch", "transformers"), "train")
"""Packages that may be missing, and the extra of dora-rl that brings each."""


def missing_package(error: ModuleNotFoundError, *, needed_for: str) -> UserError | None:
    """The error for a package that an extra brings and that is not installed; None if it is another one."""
    if error.name not in EXTRA_OF:
        return None
    hint = install_hint(EXTRA_OF[error.name])
    return UserError(f"{needed_for} needs {error.name}, which is not installed", hint=hint)


def is_disk_full(error: BaseException | None) -> bool:
    """Whether an error, or one that led to it, reports a full disk."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in NO_ROOM:
            return True
        error = error.__cause__ or error.__context__
    return False
