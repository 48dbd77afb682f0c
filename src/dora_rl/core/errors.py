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
"""The system's words for a full disk."""


class DoraError(Exception):
    """A failure worth a sentence, and a hint when there is something the reader can do."""

    exit_code: ClassVar[int] = 1

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class UserError(DoraError):
    """The input cannot be worked with."""

    exit_code = 2


class ConfigError(UserError):
    """A recipe, or an override of it, breaks a rule."""


class ModelError(UserError):
    """A model directory is incomplete, damaged, at odds with itself, or not of a supported kind."""


def install_hint(extra: str) -> str:
    """How to get an extra, from an index or from a clone."""
    return f"pip install 'dora-rl[{extra}]', or '.[{extra}]' in a clone"


def is_disk_full(error: BaseException | None) -> bool:
    """Whether an error, or what led to it, is the system's word for a full disk."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in NO_ROOM:
            return True
        error = error.__cause__ or error.__context__
    return False
