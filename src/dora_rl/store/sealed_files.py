"""Files that never change once they are written: their sums are kept beside them, and compared.

The sums' own file is sealed by a digest of itself, so that what is wrong is named: it, or one that it seals.
"""

import hashlib
from collections.abc import Iterable
from pathlib import Path

import msgspec

from dora_rl.core.record import Record
from dora_rl.store.errors import RunError

NAME = "sealed.json"


class SealedFiles(Record, frozen=True):
    """SHA-256 of every sealed file, by its path in the directory."""

    files: dict[str, str]
    sealed_by: str
    """SHA-256 of the others, as they are written here."""


def seal_files(root: Path, paths: Iterable[Path]) -> None:
    """Seal files below `root`, and all files of directories; what is not there is left out."""
    files = {str(path.relative_to(root)): _digest(path) for path in sorted(_files(paths))}
    sealed = SealedFiles(files=files, sealed_by=_seal(files))
    (root / NAME).write_bytes(msgspec.json.format(msgspec.json.encode(sealed)) + b"\n")


def check_sealed(root: Path) -> None:
    """A RunError where a file is not what was sealed; a run that sealed none is not checked."""
    path = root / NAME
    if not path.exists():
        return
    try:
        sealed = msgspec.json.decode(path.read_bytes(), type=SealedFiles)
    except (msgspec.DecodeError, UnicodeDecodeError):
        sealed = None
    if sealed is None or sealed.sealed_by != _seal(sealed.files):
        raise RunError(
            f"{path} is damaged",
            hint="put it back from a copy, or remove it: then nothing is compared with it",
        )
    for name, digest in sealed.files.items():
        if (problem := _problem(root / name, digest)) is not None:
            raise RunError(
                f"{root / name} {problem}",
                hint="put it back from a copy, or start another run from the last checkpoint of this one: "
                "--set model=CHECKPOINT",
            )


def _problem(path: Path, digest: str) -> str | None:
    try:
        return None if _digest(path) == digest else "was changed after the run had begun"
    except FileNotFoundError:
        return "is missing"
    except OSError as error:
        return f"cannot be read: {error.strerror}"


def _files(paths: Iterable[Path]) -> Iterable[Path]:
    for path in paths:
        yield from (each for each in (path, *path.rglob("*")) if each.is_file())


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _seal(files: dict[str, str]) -> str:
    return hashlib.sha256(msgspec.json.encode(sorted(files.items()))).hexdigest()
