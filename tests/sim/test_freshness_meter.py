"""The least mean staleness of a trace, and the meter that compares a run with it."""

import itertools
import random

import pytest
from msgspec.structs import replace

from dora_rl.core.history import Watcher
from dora_rl.core.inputs import LoadReport
from dora_rl.costs.freshness_meter import FreshnessMeter
from dora_rl.costs.least_staleness import _cheapest, least_mean_staleness
from dora_rl.sim.simulated_run import simulate

from .recipes import small


@pytest.mark.parametrize("seed", range(60))
def test_the_cheapest_transport_is_that_of_trying_all(seed: int) -> None:
    draw = random.Random(seed)
    num_rows, num_columns = draw.randint(1, 4), draw.randint(1, 4)
    demand = [draw.randint(1, 2) for _ in range(num_columns)]
    supply = [0] * num_rows
    for _ in range(sum(demand)):
        supply[draw.randrange(num_rows)] += 1
    costs = [[draw.randint(0, 4) for _ in range(num_columns)] for _ in range(num_rows)]
    rows = [row for row, count in enumerate(supply) for _ in range(count)]
    columns = [column for column, count in enumerate(demand) for _ in range(count)]
    tried = (
        sum(costs[row][column] for row, column in zip(rows, order, strict=True))
        for order in set(itertools.permutations(columns))
    )
    assert _cheapest(supply, demand, costs) == min(tried)


def test_a_group_is_as_stale_as_the_publishes_it_is_active_through() -> None:
    published = [float(version) for version in range(10)]
    taken = [(batch, float(batch)) for batch in range(4, 8)]
    assert least_mean_staleness([0.5] * 8, published, taken) == 1.0
    assert least_mean_staleness([1.5] * 8, published, taken) == 2.0
    assert least_mean_staleness([0.5] * 4 + [1.5] * 4, published, taken) == 1.5


def test_where_generation_and_training_take_turns_nothing_need_be_stale() -> None:
    # Generating time passes only between a publish and the next take.
    published = [float(version) for version in range(10)]
    taken = [(batch, batch + 1.0) for batch in range(4, 8)]
    assert least_mean_staleness([0.9] * 8, published, taken) == 0.0


@pytest.mark.parametrize("schedule", ["dora", "dora_onset", "one_step_off", "sync"])
def test_no_schedule_is_fresher_than_its_own_least(schedule: str) -> None:
    recipe = small(schedule=schedule, steps=24, max_staleness=2)
    result = simulate(recipe)
    assert result.staleness_least is not None
    assert result.staleness_least <= result.staleness_mean <= result.max_staleness


def test_short_runs_have_no_least() -> None:
    assert simulate(small(steps=6, max_staleness=2)).staleness_least is None


def test_without_reports_of_step_times_the_fastest_trajectory_counts() -> None:
    recipe = small(steps=24, max_staleness=2)
    meter = FreshnessMeter(2)
    simulate(recipe, [without_step_times(meter.watch)])
    found = meter.result()
    assert found is not None
    assert 0.0 < found.staleness_least <= found.staleness_mean


def without_step_times(watch: Watcher) -> Watcher:
    return lambda event, decisions: watch(
        replace(event, step_s=0.0) if isinstance(event, LoadReport) else event, decisions
    )
