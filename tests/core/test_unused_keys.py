"""What a recipe sets and nothing would read is refused or said; no key is set in vain without a word."""

from typing import get_args

import pytest

from dora_rl.control.schedules import make_schedule
from dora_rl.core.errors import ConfigError
from dora_rl.core.recipe import Recipe, ScheduleName
from dora_rl.core.recipe.resolution import resolve_recipe, shipped_recipes
from dora_rl.core.recipe.unused_keys import simulation_remarks, training_remarks
from dora_rl.core.struct_loader import to_dict

SCHEDULES = get_args(ScheduleName)
DATA = "data.train=letters"


def made(*assignments: str) -> Recipe:
    return resolve_recipe(None, [DATA, *assignments])


def remarks(*assignments: str) -> list[str]:
    return list(training_remarks(made(*assignments)))


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_the_bound_of_a_schedule_is_told_once(schedule: str) -> None:
    recipe = made(f"control.schedule={schedule}", "max_staleness=5")
    decided = make_schedule(recipe.control, recipe.batch)
    assert recipe.control.staleness_bound == decided.max_staleness
    if recipe.control.fixes_target:
        assert decided.active_groups is not None


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_redundant_groups_go_with_the_schedule_that_aborts_them(schedule: str) -> None:
    asked = (f"control.schedule={schedule}", "redundant_groups=2")
    if schedule in ("async_ratio", "sync"):
        decided = make_schedule(made(*asked).control, made(*asked).batch)
        assert decided.redundant_groups == 2
        assert decided.puts_off == (schedule == "sync")
        return
    with pytest.raises(ConfigError, match=r"redundant_groups = 2 goes with .*async_ratio or sync") as error:
        made(*asked)
    assert error.value.hint == "set control.redundant_groups=0, or control.schedule=async_ratio"
    made(*asked, "control.redundant_groups=0")
    made(*asked, "control.schedule=async_ratio")


def test_rows_of_a_stream_are_not_put_off() -> None:
    asked = ("control.schedule=sync", "redundant_groups=2", "data.train.stream=true", "steps=3")
    with pytest.raises(ConfigError, match=r"cannot be done with data.train.stream") as error:
        made(*asked)
    assert error.value.hint == "set control.redundant_groups=0, or leave data.train.stream out"
    made(*asked, "control.redundant_groups=0")
    made(*asked, "data.train.stream=false")


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_redundant_members_go_with_the_schedule_that_aborts_them(schedule: str) -> None:
    asked = (f"control.schedule={schedule}", "redundant_members=2", "batch.group_size=8")
    if schedule == "async_ratio":
        assert made(*asked).control.aborts
        with pytest.raises(ConfigError, match=r"redundant_members = 7 leaves fewer than") as too_many:
            made(*asked, "redundant_members=7")
        assert too_many.value.hint == "set control.redundant_members to at most 6"
        made(*asked, "redundant_members=6")
        alone = (*asked, "redundant_members=7", "min_members=1")
        made(*alone)
        with pytest.raises(ConfigError, match="would replace every group of one") as all_filtered:
            made(*alone, "filter_zero_variance=true")
        assert all_filtered.value.hint is not None
        made(*alone, "filter_zero_variance=true", "control.redundant_members=6")
        return
    with pytest.raises(ConfigError, match=r"redundant_members = 2 goes with .*async_ratio") as error:
        made(*asked)
    assert error.value.hint == "set control.redundant_members=0, or control.schedule=async_ratio"


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_an_r_of_ones_own_is_heeded_or_refused(schedule: str) -> None:
    asked = (f"control.schedule={schedule}", "batch.groups=4", "active_groups=5")
    if schedule in ("dora", "dora_onset", "partial", "counted"):
        recipe = made(*asked)
        assert make_schedule(recipe.control, recipe.batch).active_groups == 5
        return
    with pytest.raises(ConfigError, match=f"active_groups = 5 is not for control.schedule = {schedule}"):
        made(*asked)
    made(*asked, "control.active_groups=null")
    for other in ("dora", "dora_onset", "partial", "counted"):
        made(*asked, f"control.schedule={other}")


@pytest.mark.parametrize("key", ["async_ratio=2.5", "suspend=true"])
def test_keys_of_the_asynchronous_ratio_go_with_it(key: str) -> None:
    with pytest.raises(ConfigError, match=r"goes with .*async_ratio alone, not dora"):
        made(f"control.{key}")
    made(f"control.{key}", "control.schedule=async_ratio")


def test_the_bound_is_the_asynchronous_ratio_rounded_up() -> None:
    asked = ("control.schedule=async_ratio", "control.async_ratio=1.5")
    with pytest.raises(ConfigError, match=r"up to 2 versions .*max_staleness is 3") as error:
        made(*asked)
    assert error.value.hint == "set control.max_staleness=2"
    recipe = made(*asked, "control.max_staleness=2", "batch.groups=4")
    assert make_schedule(recipe.control, recipe.batch).active_groups == 10


def test_members_that_stay_together_must_fit_on_an_instance() -> None:
    asked = ("prompt_replication=false", "group_size=8", "slots=4")
    with pytest.raises(ConfigError, match=r"group_size = 8 .* cluster\.slots = 4"):
        made(*asked)
    made(*asked, "cluster.slots=8")
    made(*asked, "control.prompt_replication=true")


@pytest.mark.parametrize("name", sorted(shipped_recipes()))
def test_shipped_recipes_set_nothing_in_vain(name: str) -> None:
    assert list(training_remarks(resolve_recipe(name))) == []


def test_a_recipe_written_out_in_full_says_no_more_than_a_short_one() -> None:
    assert list(training_remarks(resolve_recipe(to_dict(made())))) == remarks() == []


@pytest.mark.parametrize(
    ("assignments", "key", "why"),
    [
        (["control.schedule=sync", "max_staleness=2"], "control.max_staleness", "a bound of 0"),
        (["control.schedule=one_step_off", "max_staleness=2"], "control.max_staleness", "a bound of 1"),
        (["control.schedule=sync", "adapt_staleness=true"], "control.adapt_staleness", "a bound of 0"),
        (["control.schedule=steps_off", "refill=true"], "control.refill", "fixes the version of every group"),
        (["control.schedule=one_step_off", "adapt_staleness=true"], "control.adapt_staleness", "fixes the"),
        (["control.schedule=partial", "freshness_cost=0.1"], "control.freshness_cost", "does not wait"),
        (["rebalance=false", "rebalance_period_s=9"], "control.rebalance_period_s", "rebalance = false"),
        (["evaluation.every=0", "evaluation.samples=4"], "evaluation.samples", "evaluation.every = 0"),
        (["evaluation.every=0", "evaluation_share=0.3"], "control.evaluation_share", "evaluation.every = 0"),
        (["warm_start.rate=0.1"], "warm_start.rate", "warm_start.steps = 0"),
        (["warm_start.beta2=0.9"], "warm_start.beta2", "warm_start.steps = 0"),
        (["temperature=0", "top_k=5"], "sampling.top_k", "temperature = 0"),
        (["floor=0.1"], "optimizer.learning_rate_schedule.floor", "kind = constant"),
        (["buffer_share=0.5"], "algorithm.overlong.buffer_share", "penalty = 0"),
        (
            ["algorithm.preset=dr_grpo", "algorithm.advantage.epsilon=0.1"],
            "algorithm.advantage.epsilon",
            "= none",
        ),
        (["trainer.critic.loss_weight=0.7"], "trainer.critic", "not gae"),
        (["algorithm=ppo", "value_clip=0.2"], "trainer.critic.value_clip", "batch.updates = 1"),
        (["data.seed=3"], "data.seed", "held_out_share = 0"),
        (["overlong_prompts=skip"], "data.overlong_prompts", "max_prompt_tokens is left out"),
        (["cluster.gpus=3"], "cluster.gpus", "dora simulate"),
        (["task.zero_variance_rate=0.3"], "task.zero_variance_rate", "dora simulate"),
    ],
)
def test_what_another_key_switched_off_is_said(assignments: list[str], key: str, why: str) -> None:
    (said,) = remarks(*assignments)
    assert key in said
    assert why in said


@pytest.mark.parametrize(
    "assignments",
    [
        ["max_staleness=2", "adapt_staleness=true", "active_groups=40"],
        ["evaluation.every=3", "evaluation.samples=4", "data.held_out_share=0.1", "data.seed=3"],
        ["warm_start.steps=3", "warm_start.rate=0.1"],
        ["algorithm=ppo", "value_clip=0.2", "batch.updates=2"],
        ["learning_rate_schedule.kind=linear", "floor=0.1"],
        ["max_prompt_tokens=9", "overlong_prompts=skip"],
        ["algorithm=decoupled_ppo", "batch.updates=2"],
        ["simulation.costs.update_s=3"],
    ],
)
def test_what_is_used_is_not_spoken_of(assignments: list[str]) -> None:
    assert remarks(*assignments) == []


def test_a_clip_that_cannot_take_effect_is_said() -> None:
    (said,) = remarks("algorithm=decoupled_ppo")
    assert "exactly 1" in said
    assert "batch.updates=2" in said


def test_a_correction_that_cannot_reach_all_is_said() -> None:
    asked = ("correction.high=2", "max_staleness=3")
    (said,) = remarks(*asked, "kept_versions=2")
    assert "staleness 2 and more" in said
    assert remarks(*asked, "kept_versions=4") == remarks(*asked) == []


def test_a_cut_distribution_is_said_before_the_run() -> None:
    (said,) = remarks("sampling.top_p=0.9")
    assert "ratios" in said


def test_the_simulator_speaks_of_control_alone() -> None:
    asked = made("control.schedule=sync", "max_staleness=2", "cluster.gpus=16", "warm_start.rate=0.1")
    (said,) = simulation_remarks(asked)
    assert "control.max_staleness = 2 is not used" in said


def test_credit_by_turn_is_said_to_be_idle_where_nobody_takes_turns() -> None:
    (said,) = [each for each in remarks("algorithm.credit=turn") if "credit" in each]
    assert said == "algorithm.credit is set and not used: there is no section episode"
    with_turns = remarks("algorithm.credit=turn", "episode.function=envs.py:guess")
    assert not any("credit" in each for each in with_turns)
