"""Laws 1 to 4 through the whole simulator: every schedule, every kind of trouble, and random set-ups."""

from typing import Any

import pytest

from dora_rl.core import decisions as do
from dora_rl.core.inputs import Input, Published, StepLost
from dora_rl.core.recipe import Recipe
from dora_rl.sim.audit import Audit
from dora_rl.sim.faults import FaultInjector
from dora_rl.sim.simulated_run import Result, build_world, make_schedule, simulate, summarize

from .recipes import SCHEDULES, random_recipe, small

TROUBLE: dict[str, dict[str, Any]] = {
    "calm": {},
    "deaths": {"faults": {"instance_deaths_per_hour": 60.0}},
    "hangs": {"faults": {"instance_deaths_per_hour": 60.0, "hang_share": 1.0}, "silence_s": 10.0},
    "slow": {"faults": {"slow_share": 0.5}},
    "losing steps": {"faults": {"trainer_losses_per_hour": 300.0}},
    "turns": {"turns": {"mean_turns": 3.0, "latency_s": 1.0, "failure_rate": 0.1}, "environment_tries": 2},
    "filtering": {"task": {"zero_variance_rate": 0.3}, "filter_zero_variance": True},
    "streaming": {"stream": True, "refill": True, "active_groups": 16},
    "elastic": {"cluster": {"rollout_gpus": 4, "elastic_gpus": 4}},
    "all elastic": {"cluster": {"rollout_gpus": None, "elastic_gpus": 8}},
    "one shared instance": {"cluster": {"rollout_gpus": 1}, "placement": "shared"},
    "one exclusive instance": {"cluster": {"rollout_gpus": 1, "max_versions": 1}, "placement": "exclusive"},
    "little memory": {"cluster": {"memory_share": 0.26, "slots": 64}, "lengths": {"median_tokens": 1000.0}},
    "batch scheduling": {"queue_scheduling": False, "prompt_replication": False},
    "everything": {
        "faults": {
            "instance_deaths_per_hour": 120.0,
            "hang_share": 0.3,
            "slow_share": 0.3,
            "trainer_losses_per_hour": 200.0,
        },
        "turns": {"mean_turns": 2.0, "latency_s": 1.0, "failure_rate": 0.05},
        "task": {"zero_variance_rate": 0.3},
        "filter_zero_variance": True,
        "cluster": {"rollout_gpus": 3, "elastic_gpus": 2},
        "stream": True,
        "silence_s": 10.0,
    },
}


def check(recipe: Recipe, result: Result) -> None:
    batch, control = recipe.batch, recipe.control
    members = max(control.min_members, batch.group_size - control.redundant_members)
    trajectories = recipe.steps * batch.groups * members
    assert result.lost_trajectories == 0
    assert result.duplicated_trajectories == 0
    limit = make_schedule(recipe.control, recipe.batch).staleness_limit
    assert limit is None or result.staleness_max <= limit
    if not recipe.control.mixes_versions:
        assert result.mixed_version_trajectories == 0
    if recipe.task.turns.failure_rate == 0.0:
        assert result.trained_trajectories == trajectories
    else:
        least = recipe.steps * recipe.batch.groups * recipe.control.min_members
        assert least <= result.trained_trajectories <= trajectories


def run_checked(recipe: Recipe, *, every: int = 40) -> Result:
    """As `simulate`, with a look at control's own books every so many inputs."""
    world = build_world(recipe)
    audit = Audit(
        batch_groups=recipe.batch.groups,
        group_size=recipe.batch.group_size,
        max_staleness=make_schedule(recipe.control, recipe.batch).staleness_limit,
    )

    def look(event: Input, decisions: list[do.Decision]) -> None:
        if world.num_inputs % every == 0:
            world.plane.check_integrity()

    world.watchers = [audit.watch, look]
    FaultInjector(world, recipe.seed).arm()
    world.run()
    world.plane.check_integrity()
    assert not audit.violations, audit.violations
    assert len(world.publishes) == recipe.steps
    return summarize(world, audit, freshness=None)


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("trouble", TROUBLE)
def test_the_laws_hold(schedule: str, trouble: str) -> None:
    recipe = small(schedule=schedule, **TROUBLE[trouble])
    check(recipe, run_checked(recipe))


@pytest.mark.parametrize("block", range(10))
def test_the_laws_hold_in_random_set_ups(block: int) -> None:
    for seed in range(30 * block, 30 * (block + 1)):
        recipe = random_recipe(seed)
        try:
            check(recipe, run_checked(recipe))
        except Exception as error:
            error.add_note(f"random_recipe({seed}): {recipe}")
            raise


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("block", range(20))
def test_the_laws_hold_in_very_many_random_set_ups(block: int) -> None:
    for seed in range(10_000 + 300 * block, 10_000 + 300 * (block + 1)):
        check(recipe := random_recipe(seed), run_checked(recipe))


@pytest.mark.parametrize("schedule", ["dora", "partial"])
def test_only_partial_rollout_mixes_versions(schedule: str) -> None:
    result = simulate(small(schedule=schedule))
    assert (result.mixed_version_trajectories > 0) == (schedule == "partial")


@pytest.mark.parametrize("schedule", ["dora", "dora_onset", "async_ratio"])
def test_max_staleness_zero_is_on_policy(schedule: str) -> None:
    assert simulate(small(schedule=schedule, max_staleness=0)).staleness_max == 0


# --- the audit itself: a judge that never convicts proves nothing -------------------------------


def audit_of(*watched: Input | do.Decision, max_staleness: int = 1) -> Audit:
    audit = Audit(batch_groups=1, group_size=2, max_staleness=max_staleness)
    for record in watched:
        if isinstance(record, Input):
            audit.watch(record, [])
        else:
            audit.watch(Input(at=0.0), [record])
    return audit


def admit(group: int, version: int = 0) -> do.Admit:
    return do.Admit(group=group, version=version, epoch=0, row=0)


def take(batch: int, *groups: int, staleness: int = 0) -> do.Take:
    return do.Take(batch=batch, groups=groups, staleness=(staleness,) * len(groups))


def publish(version: int) -> Published:
    return Published(at=0.0, version=version, train_s=1.0)


def test_the_audit_misses_a_trajectory_that_ends_nowhere() -> None:
    audit = audit_of(admit(0), admit(1), take(0, 0), publish(1))
    assert audit.lost({1}) == 0
    assert audit.lost(set()) == 2


def test_the_audit_sees_a_group_trained_twice() -> None:
    audit = audit_of(admit(0), take(0, 0), publish(1), take(1, 0, staleness=1), publish(2))
    assert audit.duplicated() == 2


def test_the_audit_does_not_count_a_lost_step_as_training() -> None:
    audit = audit_of(
        admit(0), take(0, 0), StepLost(at=0.0, reason=""), take(0, 0), publish(1), StepLost(at=0.0, reason="")
    )
    assert (audit.duplicated(), audit.lost(set()), audit.violations) == (0, 0, [])


@pytest.mark.parametrize(
    ("watched", "complaint"),
    [
        ((admit(0), take(0, 0), publish(1), admit(1), take(2, 1, staleness=2)), "out of turn"),
        ((admit(0), admit(1), take(0, 0, 1)), "holds 2 groups"),
        ((admit(0), take(0, 0, staleness=1)), "was called"),
        ((admit(0), take(0, 0), publish(2)), "was published after"),
    ],
)
def test_the_audit_complains(watched: tuple[Any, ...], complaint: str) -> None:
    assert complaint in audit_of(*watched).violations[0]


def test_the_audit_sees_staleness_above_the_bound() -> None:
    audit = audit_of(admit(0), admit(1), take(0, 1), publish(1), take(1, 0, staleness=1), max_staleness=0)
    assert audit.worst_staleness == 1
    assert "staleness 1 > 0" in audit.violations[0]


def test_the_audit_sees_a_start_under_another_version() -> None:
    start = do.Start(
        instance=0, version=1, trajectory=0, group=0, epoch=0, row=0, member=0, attempt=0, prompt_tokens=1
    )
    assert audit_of(admit(0, version=0), start).mixed() == 1
    assert audit_of(admit(0, version=1), start).mixed() == 0
