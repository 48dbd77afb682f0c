"""What can go wrong with stored weights. Each message says which file or version, and what.

DoraError
└── WeightsError
    ├── Damaged           a file is truncated, altered or not what its place says
    ├── WrongBase         a delta was made against other weights than it is applied to
    ├── UnknownVersion    a version was never published here, or is retired
    ├── MissingFile       a version is here, and a file that it needs is not
    ├── VersionConflict   a version is already published with other weights, or out of order
    ├── StoreBusy         another process publishes into this store
    └── CannotWrite       the disk is full, or the place is not ours
"""

from pathlib import Path

from dora_rl.core.errors import DoraError

LOST = (
    "put the file back from a copy, or start another run from the last checkpoint of this one: "
    "--set model=CHECKPOINT"
)
"""What to do about a file of weights that is lost."""


class WeightsError(DoraError):
    """Stored weights cannot be written or read."""


class Damaged(WeightsError):
    """A file of weights is truncated, altered or not what its place says."""

    is_lasting = True

    def __init__(self, path: Path, problem: str) -> None:
        super().__init__(f"{path} is damaged: {problem}", hint=LOST)
        self.path = path


class WrongBase(WeightsError):
    """A delta does not belong to these weights."""


class UnknownVersion(WeightsError):
    """A version was never published here, or is retired."""


class MissingFile(WeightsError):
    """A file that a version needs is gone."""

    is_lasting = True


class VersionConflict(WeightsError):
    """A version is final once it is published, and the next one follows the newest."""


class StoreBusy(WeightsError):
    """Another process publishes into this store."""


class CannotWrite(WeightsError):
    """The file system refuses: the disk is full, or the place is not ours."""
