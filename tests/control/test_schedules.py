"""Schedules: what each fixes, and when its gate lets groups in."""

import pytest

from dora_rl.control.schedules import AlwaysOpen, AtOnset, Schedule, make_schedule
from dora_rl.core import decisions as do
from dora_rl.core import inputs as told
from dora_rl.core.recipe import Batch, Control

from .bench import Bench, only


def schedule(name: str, **control: object) -> Schedule:
    return make_schedule(Control(schedule=name, **control), Batch(groups=4))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "control", "max_staleness", "active_groups"),
    [
        ("sync", {"max_staleness": 3}, 0, 4),
        ("one_step_off", {"max_staleness": 3}, 1, 4),
        ("steps_off", {"max_staleness": 3}, 3, 12),
        ("steps_off", {"max_staleness": 1}, 1, 4),
        ("steps_off", {"max_staleness": 0}, 0, 4),
        ("partial", {"max_staleness": 2}, 2, 8),
        ("partial", {"max_staleness": 2, "active_groups": 6}, 2, 6),
        ("counted", {"max_staleness": 2}, 2, 12),
        ("counted", {"max_staleness": 2, "active_groups": 7}, 2, 7),
        ("async_ratio", {"max_staleness": 2}, 2, 12),
        ("async_ratio", {"max_staleness": 2, "async_ratio": 1.5}, 2, 10),
        ("async_ratio", {"max_staleness": 1, "async_ratio": 0.3}, 1, 5),
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
    assert fixed.interrupts == (name in ("partial", "counted"))
    assert fixed.staleness_limit == (None if name == "counted" else max_staleness)


def test_async_ratio_suspends_where_it_is_asked_to() -> None:
    assert schedule("async_ratio", suspend=True).interrupts
    assert not schedule("async_ratio").interrupts


def test_counted_admission_bounds_how_many_started_and_no_single_group() -> None:
    bench = Bench(schedule="counted", max_staleness=1, steps=9)
    bench.join(0)
    straggler, other = only(bench.tick(), do.Start)
    for version in range(4):
        bench.end(other)
        assert bench.made(do.Take)[-1].batch == version
        # (n + S + 1) B may have started by version n: none more before the next is published.
        assert len(bench.made(do.Admit)) == version + 2
        bench.publish()
        bench.tell(told.Loaded, instance=0, version=version + 1)
        other = bench.made(do.Start)[-1]
    bench.end(straggler)
    assert bench.made(do.Take)[-1].staleness == (4,)
    assert [take.staleness for take in bench.made(do.Take)[1:4]] == [(0,), (0,), (0,)]


def test_suspended_trajectories_go_on_under_the_new_version() -> None:
    bench = Bench(schedule="async_ratio", suspend=True, max_staleness=2)
    bench.join(0)
    first, *_ = only(bench.tick(), do.Start)
    bench.end(first)
    (interrupt,) = only(bench.publish(), do.Interrupt)
    assert interrupt.version == 1
    trajectories = [t for group in bench.plane.ledger.groups.values() for t in group.members]
    assert {t.version for t in trajectories} == {1}


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


def test_one_step_off_trains_every_batch_but_the_first_one_version_later() -> None:
    # Three slots for four groups: the last ones find room only after the publish.
    bench = Bench(groups=4, schedule="one_step_off", steps=6)
    bench.join(0, slots=3, max_versions=2)
    bench.tick()
    bench.run_steps(5)
    assert [set(take.staleness) for take in bench.made(do.Take)] == [{0}, {1}, {1}, {1}, {1}]


@pytest.mark.parametrize("bound", [0, 1, 2, 3, 6])
@pytest.mark.parametrize("streams", [False, True])
def test_every_batch_of_steps_off_is_exactly_as_old_as_the_bound(bound: int, streams: bool) -> None:
    # Three slots for four groups: the last ones of each version find room only after the publish.
    bench = Bench(groups=4, schedule="steps_off", max_staleness=bound, steps=12, stream=streams)
    bench.join(0, slots=3, max_versions=2)
    bench.tick()
    bench.run_steps(12)
    assert [set(take.staleness) for take in bench.made(do.Take)] == [{min(m, bound)} for m in range(12)]


def test_one_step_off_replaces_what_came_to_nothing_under_the_version_of_the_onset() -> None:
    bench = Bench(groups=2, group_size=2, schedule="one_step_off", steps=4, filter_zero_variance=True)
    bench.join(0, slots=8, max_versions=2)
    first = only(bench.tick(), do.Start) or bench.made(do.Start)
    for start in first:
        bench.end(start, reward=float(start.member))
    second = [start for start in bench.made(do.Start) if start not in first]
    bench.publish()
    for load in bench.made(do.Load):
        bench.tell(told.Loaded, instance=load.instance, version=load.version)
    for start in second:
        bench.end(start, reward=0.0)
    replaced = bench.made(do.Admit)[4:]
    assert [admit.version for admit in replaced] == [0, 0]


def test_without_replication_a_group_starts_on_one_instance() -> None:
    apart, together = (
        Bench(groups=3, group_size=3, schedule="sync", prompt_replication=replicates)
        for replicates in (True, False)
    )
    for bench in (apart, together):
        bench.has_prompts = False
        bench.join(0, slots=4)
        bench.join(1, slots=4)
        bench.has_prompts = True
        bench.tick()
    assert len({start.group for start in apart.made(do.Start)}) == 3
    places = {start.group: set[int]() for start in together.made(do.Start)}
    for start in together.made(do.Start):
        places[start.group].add(start.instance)
    # The third group waits until an instance has three slots, though two instances have one each.
    assert sorted(map(sorted, places.values())) == [[0], [1]]
    starts = together.made(do.Start)
    for start in [each for each in starts if each.instance == 1][:2]:
        together.end(start)
    later = [start for start in together.made(do.Start) if start not in starts]
    assert [(start.group, start.instance) for start in later] == [(2, 1)] * 3
