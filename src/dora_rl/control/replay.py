"""Replay: a recorded run fed through the control plane again must give the same decisions.

The control plane is a deterministic function of its inputs, so any run, live or simulated, can be looked
at again from its event log alone. Knows nothing of where the inputs came from.
"""

from collections.abc import Iterable
from itertools import zip_longest

from dora_rl.control.plane import ControlPlane
from dora_rl.core.decisions import Decision
from dora_rl.core.history import Event
from dora_rl.core.inputs import Input
from dora_rl.core.record import Record


class Difference(Record, frozen=True):
    """The first decision in which record and replay differ; None where one of them has no such decision."""

    seq: int
    event: Input
    recorded: Decision | None = None
    replayed: Decision | None = None
    refusal: str | None = None
    """The error with which the control plane refused the input, if it could not handle it at all."""


class Replay(Record, frozen=True):
    """The result of a replay: how many inputs and decisions agreed, and the first difference if any."""

    num_inputs: int
    num_decisions: int
    difference: Difference | None = None


def replay(plane: ControlPlane, events: Iterable[Event]) -> Replay:
    """Feed recorded inputs to a fresh control plane up to the first decision that differs from the record."""
    num_inputs = num_decisions = 0
    for event in events:
        difference = _compare(plane, num_inputs, event)
        if difference is not None:
            return Replay(num_inputs=num_inputs, num_decisions=num_decisions, difference=difference)
        num_inputs += 1
        num_decisions += len(event[1])
    return Replay(num_inputs=num_inputs, num_decisions=num_decisions)


def _compare(plane: ControlPlane, seq: int, event: Event) -> Difference | None:
    told, recorded = event
    try:
        replayed = plane.handle(told)
    except Exception as error:
        # An altered input can break any assumption of the control plane: that is the finding, not a bug.
        return Difference(seq=seq, event=told, refusal=f"{type(error).__name__}: {error}")
    for before, after in zip_longest(recorded, replayed):
        if before != after:
            return Difference(seq=seq, event=told, recorded=before, replayed=after)
    return None
