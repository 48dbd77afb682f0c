"""What vLLM reached on the same workloads: the figures of `reference.json`, which the authors measured.

The file says for each machine which build it was, under what conditions, and when it was written down.
"""

from functools import cache
from pathlib import Path

import msgspec

from dora_rl.core.record import Record


class ReferenceSpeed(Record, frozen=True):
    """What another engine reached on one workload, and what counts as reaching it."""

    tokens_s: float
    floor_ratio: float
    """The least share of it that counts as met."""


class ReferenceFigures(Record, frozen=True):
    """What one build of another engine reached on one machine."""

    machine: str
    engine: str
    """With its version."""
    recorded_on: str
    """The day the figures were written down here, as YYYY-MM-DD; they may have been measured earlier."""
    shape: str
    """The model, by the name of its shape."""
    conditions: str
    speeds: dict[str, ReferenceSpeed]
    """By the workload's name, such as `64x256`."""


class References(Record, frozen=True):
    """All figures there are, by kind of device."""

    gpu: ReferenceFigures
    cpu: ReferenceFigures


@cache
def references() -> References:
    """The figures of the file beside this module."""
    return msgspec.json.decode(Path(__file__).with_suffix(".json").read_bytes(), type=References)
