"""Faults: what goes wrong is survived, and costs little."""

from typing import Any

import pytest

from dora_rl.core.decisions import Restart, Take
from dora_rl.core.inputs import InstanceJoined, InstanceLost, StepLost
from dora_rl.core.recipe import Recipe
from dora_rl.sim.faults import FaultInjector
from dora_rl.sim.simulated_run import build_world, simulate
from dora_rl.sim.simulation_setup import complete, resolve
from dora_rl.sim.world import World

from .recipes import small

LONG = {"median_tokens": 1200.0, "sigma": 1.0, "max_tokens": 16_384}


def watched(recipe: Recipe, *kinds: type) -> tuple[World, list[Any]]:
    """Run a recipe with its faults; the inputs and decisions of these kinds."""
    world = build_world(recipe)
    seen: list[Any] = []
    world.watchers = [
        lambda event, decisions: seen.extend(r for r in (event, *decisions) if isinstance(r, kinds))
    ]
    FaultInjector(world, recipe.seed).arm()
    world.run()
    return world, seen


def test_instances_die_and_come_back() -> None:
    recipe = small(steps=12, faults={"instance_deaths_per_hour": 100.0, "restart_s": 5.0})
    world, seen = watched(recipe, InstanceLost, InstanceJoined)
    lost = [event for event in seen if isinstance(event, InstanceLost)]
    back = [event for event in seen if isinstance(event, InstanceJoined) and event.at > 0.0]
    assert lost
    for death in lost:
        later = [join for join in back if join.instance == death.instance and join.at > death.at]
        assert not later or later[0].at == pytest.approx(death.at + 5.0)
    assert world.plane.is_done


def test_a_silent_death_is_noticed_by_its_silence() -> None:
    recipe = small(steps=20, silence_s=10.0, faults={"instance_deaths_per_hour": 100.0, "hang_share": 1.0})
    _, seen = watched(recipe, Restart, InstanceLost)
    assert any(isinstance(record, Restart) for record in seen)
    assert not any(isinstance(record, InstanceLost) for record in seen)


def test_the_trainer_takes_again_what_it_lost() -> None:
    recipe = small(steps=12, faults={"trainer_losses_per_hour": 300.0})
    _, seen = watched(recipe, StepLost, Take)
    losses = [i for i, record in enumerate(seen) if isinstance(record, StepLost)]
    assert losses
    for i in losses:
        before, after = seen[i - 1], seen[i + 1]
        assert (before.batch, len(before.groups)) == (after.batch, len(after.groups))


def test_slow_instances_make_a_run_slower() -> None:
    fast = simulate(small(steps=12, schedule="sync"))
    slow = simulate(small(steps=12, schedule="sync", faults={"slow_share": 1.0}))
    assert slow.step_time_s > 1.2 * fast.step_time_s


def test_a_dying_instance_loses_at_most_the_lag_of_the_journal() -> None:
    """With nothing journalled a long trajectory starts again; with all of it, it goes on."""
    deaths = {"instance_deaths_per_hour": 100.0, "restart_s": 2.0}
    remembers = simulate(small(faults=deaths | {"journal_lag_tokens": 0}, steps=12))
    forgets = simulate(small(faults=deaths | {"journal_lag_tokens": 100_000}, steps=12))
    assert remembers.restarted_trajectories > 0
    assert remembers.step_time_s < forgets.step_time_s


@pytest.mark.parametrize("share", [0.02, 0.2])
def test_dora_with_dying_instances_stays_within_a_tenth(share: float) -> None:
    """The fault-free step time, with 2 % (and 20 %) of the instances dying an hour."""
    setup = {
        "steps": 30,
        "max_staleness": 3,
        "batch": {"groups": 64, "group_size": 8},
        "cluster": {"gpus": 48, "rollout_gpus": 24, "slots": 64},
        "lengths": LONG,
    }
    calm = simulate(small(**setup))
    rough = simulate(
        small(**setup, faults={"instance_deaths_per_hour": share, "restart_s": 120.0, "hang_share": 0.25})
    )
    assert rough.lost_trajectories == rough.duplicated_trajectories == 0
    assert rough.step_time_s <= 1.10 * calm.step_time_s


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("preset", ["paper-64", "paper-128"])
def test_dora_with_dying_instances_stays_within_a_tenth_at_the_papers_size(preset: str) -> None:
    faults = "simulation.faults.instance_deaths_per_hour=0.02"
    calm = simulate(complete(resolve(preset=preset, assignments=["steps=12"])))
    rough = simulate(complete(resolve(preset=preset, assignments=["steps=12", faults])))
    assert rough.lost_trajectories == rough.duplicated_trajectories == 0
    assert rough.step_time_s <= 1.10 * calm.step_time_s
