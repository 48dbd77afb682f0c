"""R over 500 steps: it neither swings nor drifts, whatever happens to lengths and instances."""

from collections.abc import Sequence
from itertools import pairwise
from statistics import fmean, pstdev

import pytest

from dora_rl.core.decisions import Decision
from dora_rl.core.inputs import Input, Published
from dora_rl.core.recipe import Recipe
from dora_rl.sim.simulated_run import build_world, run_world
from dora_rl.sim.simulation_setup import complete, resolve

from .recipes import small

STEPS, SETTLED, BLOCK = 500, 50, 50
GROUPS = 16

TURNS = {
    "batch": {"groups": GROUPS, "group_size": 4},
    "cluster": {"rollout_gpus": None, "elastic_gpus": 8, "slots": 24},
}
CALM = {"batch": {"groups": GROUPS, "group_size": 2}, "cluster": {"slots": 12}}
LARGER = {"batch": {"groups": GROUPS, "group_size": 4}, "cluster": {"slots": 24}}
FILTERED = {"filter_zero_variance": True, "task": {"zero_variance_rate": 0.3}}
DYING = {"faults": {"instance_deaths_per_hour": 20.0, "restart_s": 20.0, "hang_share": 0.1}}


def trace(recipe: Recipe, *, doubled: Sequence[range] = ()) -> tuple[list[float], list[float]]:
    """R / B at every publish, and the seconds since the one before; lengths are `doubled` in some steps."""
    world = build_world(recipe)
    levels, times = [], [0.0]
    drawn = world.truth.response_tokens

    def response_tokens(epoch: int, row: int, member: int, attempt: int) -> int:
        is_double = any(world.plane.window.newest in steps for steps in doubled)
        return drawn(epoch, row, member, attempt) * (2 if is_double else 1)

    def watch(event: Input, decisions: list[Decision]) -> None:
        if isinstance(event, Published):
            levels.append(world.plane.target.groups / GROUPS)
            times.append(event.at)

    world.truth.response_tokens = response_tokens  # type: ignore[method-assign]
    run_world(world, [watch])
    return levels, [b - a for a, b in pairwise(times)]


def blocks(values: Sequence[float], steps: range) -> list[float]:
    """Means over 50 steps each."""
    return [fmean(values[i : i + BLOCK]) for i in range(steps.start, steps.stop, BLOCK)]


def assert_steady(levels: Sequence[float], steps: range) -> None:
    """Neither swings from step to step nor from block to block, nor goes anywhere over all of them."""
    means = blocks(levels, steps)
    inside = [levels[i : i + BLOCK] for i in range(steps.start, steps.stop, BLOCK)]
    assert max(map(pstdev, inside)) <= 0.3, f"swings: {[round(pstdev(part), 2) for part in inside]}"
    assert max(means) - min(means) <= 0.4, f"wanders: {[round(m, 2) for m in means]}"
    third = max(1, len(means) // 3)
    assert abs(fmean(means[-third:]) - fmean(means[:third])) <= 0.25, f"drifts: {means}"


TROUBLES = pytest.mark.parametrize(
    "trouble",
    [{}, FILTERED, DYING, {**FILTERED, **DYING}],
    ids=["calm", "30 % filtered", "instances die", "both"],
)


@TROUBLES
def test_r_settles(trouble: dict[str, object]) -> None:
    levels, _ = trace(small(steps=150, **CALM, **trouble))  # type: ignore[arg-type]
    assert_steady(levels, range(SETTLED, 150))


@pytest.mark.parametrize("trouble", [{}, FILTERED], ids=["calm", "30 % filtered"])
def test_r_settles_where_devices_take_turns(trouble: dict[str, object]) -> None:
    levels, _ = trace(small(steps=120, rebalance_period_s=1.0, **TURNS, **trouble))  # type: ignore[arg-type]
    assert_steady(levels, range(SETTLED, 100))


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("trouble", [{}, FILTERED], ids=["calm", "30 % filtered"])
def test_r_moves_slowly_where_devices_take_turns_and_levels_tie(trouble: dict[str, object]) -> None:
    """Levels from 2 to 3 B are within the cost of each other here: R may sink among them, and not swing."""
    levels, times = trace(small(steps=STEPS, rebalance_period_s=1.0, **TURNS, **trouble))  # type: ignore[arg-type]
    means = blocks(levels, range(SETTLED, STEPS))
    assert max(pstdev(levels[i : i + BLOCK]) for i in range(SETTLED, STEPS, BLOCK)) <= 0.4
    assert max(abs(b - a) for a, b in pairwise(means)) <= 0.5, means
    early, late = fmean(times[SETTLED:250]), fmean(times[250:])
    assert late == pytest.approx(early, rel=0.1), "steps grow longer"


def test_answers_that_end_at_the_limit_are_trained_on_as_fresh_as_can_be() -> None:
    """Where all levels are about as fast, the one that is found is the freshest: one batch."""
    recipe = complete(resolve(preset="capped-1gpu", assignments=["steps=20", "max_staleness=3"]))
    world = build_world(recipe)
    run_world(world)
    assert world.plane.target.groups == recipe.batch.groups


@pytest.mark.slow
@pytest.mark.timeout(600)
@TROUBLES
def test_r_neither_swings_nor_drifts(trouble: dict[str, object]) -> None:
    levels, times = trace(small(steps=STEPS, **LARGER, **trouble))  # type: ignore[arg-type]
    assert_steady(levels, range(SETTLED, STEPS))
    early, late = fmean(times[SETTLED:250]), fmean(times[250:])
    assert late == pytest.approx(early, rel=0.1), "steps grow longer"


@pytest.mark.slow
@pytest.mark.timeout(600)
@TROUBLES
def test_r_follows_lengths_that_double_and_halve_and_comes_back(trouble: dict[str, object]) -> None:
    doubled = [range(100, 200), range(300, 400)]
    levels, times = trace(small(steps=STEPS, **LARGER, **trouble), doubled=doubled)  # type: ignore[arg-type]
    for first in range(0, STEPS, 100):
        assert_steady(levels, range(first + SETTLED, first + 100))
    # The second time is as the first, both ways.
    for earlier, later in ((50, 250), (150, 350), (250, 450)):
        before, after = slice(earlier, earlier + BLOCK), slice(later, later + BLOCK)
        assert fmean(levels[after]) == pytest.approx(fmean(levels[before]), abs=0.35)
        # Four minutes hold five deaths, or three: that alone is a seventh of the time.
        assert fmean(times[after]) == pytest.approx(fmean(times[before]), rel=0.2)
