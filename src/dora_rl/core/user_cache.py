"""What is kept between runs for this user: built-in models, tuned tiles, compiled kernels."""

import os
from contextlib import suppress
from pathlib import Path

_COMPILED = {"TRITON_CACHE_DIR": "triton", "TORCHINDUCTOR_CACHE_DIR": "torch"}
"""Where compilers keep what they compile: their environment variables, and the directories they get."""


def cache_directory() -> Path:
    """The user's cache of this package: $DORA_CACHE, else a directory in the user's own."""
    if found := os.environ.get("DORA_CACHE"):
        return Path(found)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "dora-rl"


def keep_compiled() -> None:
    """Have Triton and torch's compiler keep in that cache what they compile, unless they are told where.

    By themselves they keep part of it in a temporary directory; they still do where nothing can be written.
    """
    place = cache_directory() / "compiled"
    with suppress(OSError):
        place.mkdir(parents=True, exist_ok=True)
    if os.access(place, os.W_OK):
        for variable, name in _COMPILED.items():
            os.environ.setdefault(variable, str(place / name))
