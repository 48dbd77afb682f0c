"""What can go wrong and be said in one sentence. Invariants are not here: they are asserts.

    DoraError              a failure with a message and, where one exists, a way out
    └── UserError          the input is wrong; exit code 2
        ├── ConfigError    a recipe or an override is wrong
        └── ModelError     a model directory is wrong, or of a kind that is not supported

The command line turns a DoraError into `error: ...` and `hint: ...`; anything else is a bug and keeps its
traceback.
"""

import errno
from typing import ClassVar

NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
"""Error numbers with which the system reports a full disk or an exhausted quota."""


class DoraError(Exception):
    """A failure worth a sentence, and a hint when there is something the reader can do."""

    exit_code: ClassVar[int] = 1

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    @property
    def hint(self) -> str | None:
        """What the reader can do; a traceback shows it as a note."""
        return self._hint

    @hint.setter
    def hint(self, hint: str | None) -> None:
        self._hint = hint
        self.__notes__ = [] if hint is None else [f"hint: {hint}"]


class UserError(DoraError):
    """An error in what the user gave: the run cannot work with it."""

    exit_code = 2


class ConfigError(UserError):
    """A recipe, or an override of it, breaks a rule."""


class ModelError(UserError):
    """A model directory is incomplete, damaged, at odds with itself, or not of a supported kind."""


def install_hint(extra: str) -> str:
    """The hint how to install an optional extra, from an index or from a clone."""
    return f"pip install 'dora-rl[{extra}]', or '.[{extra}]' in a clone"


EXTRA_OF = {"safetensors": "train", "tokenizers": "train", "torch": "train", "transformers": "train"}
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
