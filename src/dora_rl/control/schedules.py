"""Schedules: small policies over the same control plane, so that comparing them compares nothing else.

A schedule fixes the bound, the target number of active groups, when new groups may start (its gate)
and what happens to unfinished work when a version is published. Everything else is shared.

    sync          S = 0: generate B groups, train, repeat; with redundant groups RollPacker's tail batching
    one_step_off  S = 1: train on batch i while batch i + 1 is generated, all of it under the version of i
    steps_off     the same at any S: batch i + S is of the version of i, so every staleness is exactly S
    partial       at each publish interrupt everything and go on with new weights (breaks law 1)
    counted       AReaL: as partial, but only the number of groups started is bounded (breaks laws 1 and 3)
    async_ratio   ROLL Flash: S = alpha, (alpha + 1) B groups in flight, optional redundant groups
    dora_onset    the paper's DORA: new groups only at the onset of a step
    dora          continuous admission; the default
"""

from collections.abc import Callable
from typing import Protocol

from dora_rl.core.recipe import Batch, Control, ScheduleName
from dora_rl.core.record import Record


class Gate(Protocol):
    """A schedule's own rule for when new groups may start, besides the window's."""

    @property
    def is_open(self) -> bool: ...

    def admitted(self) -> None:
        """Count a group that started."""

    def closed(self) -> None:
        """Count a group that ended in an outcome: another may start in its place."""

    def onset(self, missing_groups: int) -> None:
        """A train step begins, with `missing_groups` fewer groups active than the target."""


class AlwaysOpen:
    """The gate of continuous admission: never closed."""

    is_open = True

    def admitted(self) -> None:
        """Ignored: this gate counts no groups."""

    def closed(self) -> None:
        """Ignored: this gate counts no groups."""

    def onset(self, missing_groups: int) -> None:
        """Ignored: groups may start at any moment."""


class AtOnset:
    """The gate that lets a quota of groups start at each step's onset, and replacements in between."""

    def __init__(self) -> None:
        self._quota = 0

    @property
    def is_open(self) -> bool:
        return self._quota > 0

    def admitted(self) -> None:
        self._quota -= 1

    def closed(self) -> None:
        self._quota += 1

    def onset(self, missing_groups: int) -> None:
        self._quota = max(0, missing_groups)


class Schedule(Record, frozen=True, gc=True):
    """All that distinguishes one schedule from another: bound, target, gate, and what a publish does."""

    max_staleness: int
    """The bound S on the staleness of each group; see `bounds_each` for the one schedule without it."""
    active_groups: int | None
    """Target number of active groups, R; None lets the controller find it."""
    gate: Gate
    interrupts: bool = False
    """Whether a publish interrupts unfinished trajectories, which go on under the new version."""
    bounds_each: bool = True
    """Whether each group has a deadline; else only (n + S + 1) B groups may have started by version n."""
    redundant_groups: int = 0
    """Groups that start beyond need, and end unfinished when a batch is complete."""
    puts_off: bool = False
    """Whether prompts of redundant groups are put off to a round of their own, in which none is redundant."""
    leaving_groups: int = 0
    """Groups that do not count against R while the trainer is idle: those its next batch takes."""
    waits_for_publish: bool = False
    """Whether new groups wait for a publish that is near, where `freshness_cost` allows it."""
    pins_at_onset: bool = False
    """Whether a step's onset pins the groups of a whole batch, those too that have to wait for room."""

    @property
    def staleness_limit(self) -> int | None:
        """The greatest staleness that a group can have; None where none is promised."""
        return self.max_staleness if self.bounds_each else None


def _sync(control: Control, batch: Batch) -> Schedule:
    redundant = control.redundant_groups
    return Schedule(
        max_staleness=0,
        active_groups=batch.groups + redundant,
        gate=AtOnset() if redundant else AlwaysOpen(),
        redundant_groups=redundant,
        puts_off=bool(redundant),
    )


def _steps_off(control: Control, batch: Batch) -> Schedule:
    """Exactly B groups of each version, trained on S versions later; the first S batches are of version 0."""
    bound = control.staleness_bound
    if bound == 0:
        return _sync(control, batch)
    return Schedule(
        max_staleness=bound,
        active_groups=bound * batch.groups,
        gate=AtOnset(),
        # One that started after the publish, where room was short, would be fresher: another schedule.
        pins_at_onset=True,
    )


def _partial(control: Control, batch: Batch) -> Schedule:
    groups = control.active_groups or 2 * batch.groups
    return Schedule(
        max_staleness=control.max_staleness, active_groups=groups, gate=AlwaysOpen(), interrupts=True
    )


def _counted(control: Control, batch: Batch) -> Schedule:
    groups = control.active_groups or (control.max_staleness + 1) * batch.groups
    return Schedule(
        max_staleness=control.max_staleness,
        active_groups=groups,
        gate=AlwaysOpen(),
        interrupts=True,
        bounds_each=False,
    )


def _async_ratio(control: Control, batch: Batch) -> Schedule:
    alpha = control.async_ratio if control.async_ratio is not None else control.max_staleness
    return Schedule(
        max_staleness=control.max_staleness,
        active_groups=int((alpha + 1) * batch.groups) + control.redundant_groups,
        gate=AlwaysOpen(),
        interrupts=control.suspend,
        redundant_groups=control.redundant_groups,
    )


def _dora_onset(control: Control, batch: Batch) -> Schedule:
    groups = control.active_groups or 2 * batch.groups
    return Schedule(max_staleness=control.max_staleness, active_groups=groups, gate=AtOnset())


def _dora(control: Control, batch: Batch) -> Schedule:
    return Schedule(
        max_staleness=control.max_staleness,
        active_groups=control.active_groups,
        gate=AlwaysOpen(),
        leaving_groups=batch.groups,
        waits_for_publish=True,
    )


_SCHEDULES: dict[ScheduleName, Callable[[Control, Batch], Schedule]] = {
    "sync": _sync,
    "one_step_off": _steps_off,
    "steps_off": _steps_off,
    "partial": _partial,
    "counted": _counted,
    "async_ratio": _async_ratio,
    "dora_onset": _dora_onset,
    "dora": _dora,
}


def make_schedule(control: Control, batch: Batch) -> Schedule:
    """The schedule that a recipe names."""
    return _SCHEDULES[control.schedule](control, batch)
