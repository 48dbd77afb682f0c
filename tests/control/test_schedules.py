"""Schedules: what each fixes, and when its gate lets groups in."""

import pytest

from dora_rl.control.schedules import AlwaysOpen, AtOnset, Schedule, make_schedule
from dora_rl.core import decisions as do
from dora_rl.core.recipe import Batch, Control

from .bench import Bench, only


def schedule(name: str, **control: object) -> Schedule:
    return make_schedule(Control(schedule=name, **control), Batch(groups=4))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "control", "max_staleness", "active_groups"),
    [
        ("sync", {"max_staleness": 3}, 0, 4),
        ("one_step_off", {"max_staleness": 3}, 1, 8),
        ("partial", {"max_staleness": 2}, 2, 8),
        ("partial", {"max_staleness": 2, "active_groups": 6}, 2, 6),
        ("async_ratio", {"max_staleness": 2}, 2, 12),
        ("async_ratio", {"max_staleness": 2, "redundant_groups": 3}, 2, 15),
        ("dora_onset", {"max_staleness": 2}, 2, 8),
        ("dora", {"max_staleness": 2, "active_groups": 5}, 2, 5),
        ("dora", {"max_staleness": 2}, 2, None),
    ],
)
def test_a_schedule_fixes_its_bound_and_its_target(
    name: str, control: dict[str, object], max_staleness: int, active_groups: int | None
) -> None:
    fixed = schedule(name, **control)
    assert (fixed.max_staleness, fixed.active_groups) == (max_staleness, active_groups)
    assert fixed.interrupts == (name == "partial")


def test_two_runs_never_share_a_gate() -> None:
    assert schedule("dora_onset").gate is not schedule("dora_onset").gate


def test_an_open_gate_stays_open() -> None:
    gate = AlwaysOpen()
    gate.admitted()
    gate.onset(-3)
    assert gate.is_open


def test_an_onset_lets_in_what_is_missing_and_no_more() -> None:
    gate = AtOnset()
    assert not gate.is_open
    gate.onset(2)
    gate.admitted()
    assert gate.is_open
    gate.admitted()
    assert not gate.is_open


def test_an_onset_lets_in_no_more_than_its_most() -> None:
    gate = AtOnset(most_groups=1)
    gate.onset(5)
    gate.admitted()
    assert not gate.is_open


def test_what_came_to_nothing_may_be_replaced_between_onsets() -> None:
    gate = AtOnset()
    gate.onset(-2)
    assert not gate.is_open
    gate.closed()
    assert gate.is_open


def test_sync_starts_nothing_while_a_step_trains() -> None:
    bench = Bench(groups=2, schedule="sync")
    bench.join(0)
    for start in only(bench.tick(), do.Start):
        bench.end(start)
    assert len(bench.made(do.Take)) == 1
    bench.tick()
    assert len(bench.made(do.Admit)) == 2


def test_one_step_off_generates_one_batch_while_it_trains_another() -> None:
    bench = Bench(groups=2, schedule="one_step_off")
    bench.join(0)
    for start in only(bench.tick(), do.Start):
        bench.end(start)
    bench.tick()
    assert len(bench.made(do.Admit)) == 4
