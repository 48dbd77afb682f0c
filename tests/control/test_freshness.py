"""Fresh first: when groups start, what they wait for, and what is recorded of versions without any."""

import pytest

from dora_rl.control.durations import Durations
from dora_rl.core import decisions as do
from dora_rl.core import inputs as told

from .bench import Bench, one, only


def test_the_batch_that_the_idle_trainer_waits_for_does_not_count_against_r() -> None:
    bench = Bench(max_staleness=3, active_groups=1)
    bench.join(0)
    assert len(only(bench.tick(), do.Start)) == 2


def test_groups_wait_for_the_publish_where_nothing_generates_meanwhile() -> None:
    bench = Bench(max_staleness=3, active_groups=3)
    bench.join(0, elastic=True, max_versions=2)
    first, *_ = only(bench.tick(), do.Start)
    taken = bench.end(first)
    assert only(taken, do.Take)
    assert not only(taken, do.Admit)
    bench.tell(told.Lent, instance=0)
    bench.tell(told.Trained)
    assert not only(bench.tell(told.Returned, instance=0), do.Admit), "the next version is about to come"
    bench.publish()
    bench.tell(told.Loaded, instance=0, version=1)
    assert {admit.version for admit in bench.made(do.Admit)[4:]} == {1}


def test_a_hold_ends_with_a_step_that_is_lost() -> None:
    bench = Bench(max_staleness=3, active_groups=3)
    bench.join(0, elastic=True)
    first, *_ = only(bench.tick(), do.Start)
    bench.end(first)
    before = len(bench.made(do.Admit))
    bench.tell(told.StepLost, reason="died")
    bench.tick()
    assert bench.plane.is_training or len(bench.made(do.Admit)) > before


def test_a_version_without_groups_is_recorded_with_its_reason() -> None:
    bench = Bench(max_staleness=1, active_groups=1)
    bench.join(0, slots=2)
    first, second = only(bench.tick(), do.Start)
    bench.end(first)
    bench.end(second)
    decisions = bench.publish()  # Version 1: the next batch is taken at once, and both slots are free.
    assert not only(decisions, do.Skip)
    bench.tell(told.InstanceLost, instance=0, reason="died")
    skipped = one(bench.publish(), do.Skip)
    assert (skipped.version, skipped.reason) == (1, "room")


def test_durations_stand_still_while_nothing_generates() -> None:
    durations = Durations()
    durations.started(0, now=0.0)
    durations.paused(now=1.0)
    durations.paused(now=2.0)
    durations.resumed(now=11.0)
    durations.ended(0, now=12.0, passed=True)
    assert durations.group_quantiles(12.0) == [2.0] * 64


def test_groups_that_failed_are_no_evidence_of_length() -> None:
    bench = Bench(max_staleness=3, active_groups=2, environment_tries=1)
    bench.join(0)
    first, *_ = only(bench.tick(), do.Start)
    bench.turn_ends(first)
    bench.tell(told.EnvironmentFailed, trajectory=first.trajectory, reason="gone")
    assert only(bench.all, do.Close)
    known = bench.plane._p.durations._started
    assert first.group not in known
    assert set(known) <= set(bench.plane.ledger.groups)


def test_groups_that_still_run_are_evidence_of_length() -> None:
    durations = Durations()
    for group in range(10):
        durations.started(group, now=0.0)
    for group in range(5):
        durations.ended(group, now=1.0, passed=True)
    quantiles = durations.group_quantiles(8.0)
    assert quantiles[:32] == [1.0] * 32
    assert quantiles[32:] == [pytest.approx(10.0)] * 32
