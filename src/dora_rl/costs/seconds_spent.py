"""Where the seconds of a run went: the names of what instances and trainer do and wait for, and their sums.

Two resources are accounted for, each instance and the trainer. Whatever the run, the seconds of a resource
add up to its wall time: every moment is exactly one of these.
"""

from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Self, TypeVar

from dora_rl.core.record import Record


class Spent(StrEnum):
    """What a second of an instance or of the trainer went to."""

    GENERATING = "generating"
    EVALUATING = "evaluating"
    TRAINING = "training"
    """The trainer trains; or an instance's devices are lent to it."""
    PUBLISHING = "publishing"
    HANDING_OVER = "handing_over"
    """The batch is on its way to the trainer, or word of its version back."""
    PREFILL = "prefill"
    RECOMPUTE = "recompute"
    KV_MOVES = "kv_moves"
    WEIGHT_LOADS = "weight_loads"
    SWITCHING = "switching"
    """Lent devices are on their way back to the instance."""
    TRAINER = "trainer"
    """Nothing may start before the trainer has ended its step."""
    BATCH = "batch"
    """Other groups are being generated that the batch lacks."""
    WINDOW = "window"
    """Old groups are being generated that have to be in the batch."""
    ENVIRONMENT = "environment"
    REWARD = "reward"
    PROMPTS = "prompts"
    STARTING = "starting"
    DOWN = "down"
    ENDING = "ending"
    """The last step is published: evaluations and the last checkpoint."""
    OTHER = "other"


WAITS = (Spent.BATCH, Spent.WINDOW, Spent.ENVIRONMENT, Spent.REWARD, Spent.PROMPTS)
"""What an idle trainer waits for, and with it an instance that may not start anything."""

Seconds = dict[Spent, float]
"""Seconds by what they went to."""

_Key = TypeVar("_Key")


class StepSeconds(Record, frozen=True, gc=True):
    """Seconds from one publish to the next."""

    step: int
    """Number of the step, counted from 1."""
    is_published: bool
    """Whether the step is over; False for what came after the last publish."""
    wall_s: float
    instances: Seconds
    """Seconds of all instances together: they add up to their number times `wall_s`."""
    behind: dict[int, float]
    """The seconds of generating, by how many versions behind the newest one."""
    trainer: Seconds
    """Seconds of the trainer: they add up to `wall_s`."""


class SecondsSpent(Record, frozen=True, gc=True):
    """Where the seconds of a run went, in all and by step."""

    wall_s: float
    num_instances: int
    instances: Seconds
    """Seconds of all instances together: they add up to their number times `wall_s`."""
    behind: dict[int, float]
    """The seconds of generating, by how many versions behind the newest one."""
    by_version: dict[int, float]
    """The seconds of generating, by version."""
    trainer: Seconds
    """Seconds of the trainer: they add up to `wall_s`."""
    steps: list[StepSeconds]

    @classmethod
    def of(cls, steps: Sequence[StepSeconds], *, num_instances: int, by_version: dict[int, float]) -> Self:
        """The account of a run from those of its steps."""
        return cls(
            wall_s=sum(step.wall_s for step in steps),
            num_instances=num_instances,
            instances=in_order(_sum(step.instances for step in steps)),
            behind=dict(sorted(_sum(step.behind for step in steps).items())),
            by_version=by_version,
            trainer=in_order(_sum(step.trainer for step in steps)),
            steps=list(steps),
        )


def add_seconds(seconds: Seconds, spent: Spent, amount: float) -> None:
    """Add an amount to what something took."""
    seconds[spent] = seconds.get(spent, 0.0) + amount


def in_order(seconds: Seconds) -> Seconds:
    """Seconds in the order of their names, without what took none."""
    return {spent: seconds[spent] for spent in Spent if seconds.get(spent)}


def _sum(parts: Iterable[Mapping[_Key, float]]) -> dict[_Key, float]:
    total: dict[_Key, float] = {}
    for part in parts:
        for key, amount in part.items():
            total[key] = total.get(key, 0.0) + amount
    return total
