"""What a comparison says of its runs, and what the command line makes of its options."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import fields, replace

from dora_rl.bench.schedules import schedule_comparison as schedules
from dora_rl.bench.schedules.costs import MeasuredCosts
from dora_rl.bench.schedules.options import ScheduleOptions, make_scope
from dora_rl.bench.schedules.schedule_comparison import (
    SCHEDULES,
    ScheduleComparison,
    ScheduleRun,
    length_of,
    reward_gaps,
)
from dora_rl.bench.schedules.spans import LogFacts
from dora_rl.core.errors import ConfigError
from dora_rl.core.recipe import Lognormal
from dora_rl.engines.requests import StreamKey
from dora_rl.run.run_setup import RunSetup


def run(
    schedule: str, seed: int, step_s: float, *rewards: float, placement: str = "1 x 1 + 1"
) -> ScheduleRun:
    fields: dict[str, Any] = dict.fromkeys(
        ("mean_tokens", "staleness_mean", "starved_s", "window_stall_s", "instance_idle_share",
         "trainer_idle_share", "trajectories_per_s"), 0.0
    )  # fmt: skip
    return ScheduleRun(
        schedule=schedule,  # type: ignore[arg-type]
        seed=seed,
        placement=placement,
        step_s=step_s,
        predicted_step_s=None,
        rewards=rewards,
        max_tokens=1,
        staleness_max=0,
        gpu_busy_share=None,
        **fields,
    )


def compared(*runs: ScheduleRun) -> ScheduleComparison:
    return ScheduleComparison(title="", claims_speed_only=False, runs=runs, costs={})


def test_sync_counts_with_the_placement_that_suits_it() -> None:
    both = compared(run("sync", 0, 3.0), run("sync", 0, 2.0, placement="1 x 2 + 2"), run("sync", 1, 1.0))
    assert both.sync_step_s(0) == 2.0
    assert both.sync_step_s(1) == 1.0
    assert both.sync_step_s(2) is None


def test_a_reward_curve_is_compared_with_the_spread_over_seeds() -> None:
    runs = (run("sync", 0, 1.0, 0.0, 0.5), run("sync", 1, 1.0, 0.2, 0.9), run("dora", 0, 1.0, 0.2, 0.6))
    ((schedule, gap, spread),) = reward_gaps(compared(*runs))
    assert schedule == "dora"
    assert gap == pytest.approx((0.1 + 0.1) / 2)
    assert spread == pytest.approx((0.2 + 0.4) / 2)


def test_one_seed_has_no_spread() -> None:
    ((_, _, spread),) = reward_gaps(compared(run("sync", 0, 1.0, 0.5), run("dora", 0, 1.0, 0.5)))
    assert spread is None


def options(**changes: Any) -> ScheduleOptions:
    given: dict[str, Any] = {
        "device": "cpu",
        "steps": 5,
        "schedules": "",
        "seeds": "0,2",
        "recipe": "demo",
        "assignments": ("batch.groups=4",),
        "is_prescribed": None,
        "shape": None,
        "groups": None,
        "max_tokens": None,
    }
    return ScheduleOptions(**(given | changes))


def test_a_cpu_runs_the_recipe_itself(tmp_path: Path) -> None:
    scope = make_scope(options(), tmp_path, None)
    assert (scope.recipe, scope.lengths) == ("demo", None)
    assert scope.schedules == SCHEDULES
    assert scope.assignments[-1] == "batch.groups=4", "what was given goes last"
    assert scope.seeds == (0, 2)
    assert not scope.keeps_runs
    assert make_scope(options(schedules="dora, sync"), tmp_path, None).schedules == ("dora", "sync")


@pytest.mark.parametrize("wrong", [{"schedules": "dorra"}, {"seeds": "one"}])
def test_wrong_names_are_refused(wrong: dict[str, str], tmp_path: Path) -> None:
    with pytest.raises(ConfigError):
        make_scope(options(**wrong), tmp_path, None)


def test_prescribed_lengths_have_a_long_tail_and_are_the_same_every_time() -> None:
    lengths = Lognormal(median_tokens=32, sigma=1.0, min_tokens=4, max_tokens=192)
    keys = [StreamKey(seed=3, row=row, member=member) for row in range(100) for member in range(4)]
    drawn = [length_of(lengths, 3)(key) for key in keys]
    assert drawn == [length_of(lengths, 3)(key) for key in keys]
    assert 4 <= min(drawn) < 20
    assert 150 < max(drawn) <= 192
    assert 25 < sorted(drawn)[200] < 40


@pytest.mark.parametrize(
    ("device", "cpu_s", "predicted_s"),
    [("cpu", 0.3, 0.15), ("cpu", 0.1, 0.07), ("cpu", None, 0.07), ("cuda:0", 9.0, 0.07)],
)
def test_no_step_is_predicted_to_take_less_than_its_processor_time(
    device: str,
    cpu_s: float | None,
    predicted_s: float,
    monkeypatch: pytest.MonkeyPatch,
    make_setup: Callable[..., RunSetup],
) -> None:
    monkeypatch.setattr(schedules, "predicted_step_s", lambda root, **given: 0.07)
    monkeypatch.setattr(schedules, "num_cores", lambda: 2)
    setup = make_setup()
    setup = replace(setup, devices=replace(setup.devices, instance_device=device))
    costs = MeasuredCosts(**{each.name: 0.0 for each in fields(MeasuredCosts)})
    basis = schedules._SyncBasis(costs=costs, lengths={}, cpu_s=cpu_s)
    assert schedules._predicted(setup, basis, LogFacts()) == pytest.approx(predicted_s)
