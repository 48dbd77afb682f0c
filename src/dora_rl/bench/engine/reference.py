"""What vLLM reached on the same workloads: the figures of `reference.json`, which the authors measured.

The file says for each machine which build it was, under what conditions, and when it was written down.
"""

from functools import cache
from pathlib import Path

import msgspec

from dora_rl.core.record import Record


class ReferenceSpeed(Record, frozen=True):
    """The speed of another engine on one workload, and the share of it that counts as reaching it."""

    tokens_s: float
    floor_ratio: float
    """Least share of the other engine's speed that counts as reaching it."""


class ReferenceFigures(Record, frozen=True):
    """The speeds of one build of another engine on one machine."""

    machine: str
    engine: str
    """Name and version of the other engine."""
    recorded_on: str
    """The day the figures were written down here, as YYYY-MM-DD; they may have been measured earlier."""
    shape: str
    """Name of the model's shape."""
    conditions: str
    speeds: dict[str, ReferenceSpeed]
    """Speeds by the workload's name, such as `64x256`."""


class References(Record, frozen=True):
    """All reference figures, by kind of device."""

    gpu: ReferenceFigures
    cpu: ReferenceFigures


@cache
def references() -> References:
    """Read the reference figures from the file beside this module."""
    return msgspec.json.decode(Path(__file__).with_suffix(".json").read_bytes(), type=References)
