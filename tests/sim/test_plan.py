"""The planner: predictions agree with runs, choices fit, and the less stale of two equals wins."""

from msgspec.structs import replace

from dora_rl.core.recipe import Recipe
from dora_rl.costs.gpu_memory import fewest_training_gpus, memory
from dora_rl.costs.limit import in_turn, limit, split_times
from dora_rl.sim.plan.predict import predict
from dora_rl.sim.plan.refine import make_plan, num_parts
from dora_rl.sim.plan.search import candidates, decide
from dora_rl.sim.simulated_run import simulate
from dora_rl.sim.simulation_setup import complete, resolve


def small(*assignments: str) -> Recipe:
    return resolve(
        assignments=["gpus=16", "batch.groups=32", "group_size=4", "rows=100", "slots=32", *assignments]
    )


def test_every_candidate_fits_and_is_ranked_by_its_prediction() -> None:
    recipe = resolve(preset="paper-64", assignments=["tensor_parallel=null", "rollout_gpus=null"])
    found = candidates(recipe, [1, 2, 3])
    best = min(candidate.prediction.step_s for candidate in found)
    assert found[0].prediction.step_s <= 1.01 * best
    for candidate in found:
        decided = candidate.choice.applied_to(recipe)
        assert memory(decided, candidate.choice.tensor_parallel).trainer_bytes < 0.9 * 80 * 2**30
        assert 64 - candidate.choice.rollout_gpus >= fewest_training_gpus(recipe)


def test_of_equally_fast_choices_the_less_stale_comes_first() -> None:
    recipe = small("median_tokens=50", "sigma=0.1", "lengths.max_tokens=80", "update_s=20")
    assert candidates(recipe, [3, 2, 1])[0].choice.max_staleness == 1


def test_the_prediction_of_a_trainer_bound_run_is_the_time_of_training() -> None:
    recipe = complete(small("rollout_gpus=8", "tensor_parallel=1", "update_s=30", "steps=12"))
    prediction = predict(recipe, split_times(recipe, 8, 1), max_staleness=3)
    assert prediction.step_s == prediction.train_s
    assert abs(simulate(recipe).step_time_s / prediction.step_s - 1) < 0.1


def test_a_greater_bound_never_slows_a_prediction() -> None:
    recipe = resolve(preset="agentic-64")
    split = split_times(recipe, 32, 4)
    times = [predict(recipe, split, max_staleness=bound).step_s for bound in range(1, 8)]
    assert times == sorted(times, reverse=True)


def test_the_paper_presets_use_the_split_the_planner_would_choose() -> None:
    for preset, rollout_gpus in (("paper-64", 20), ("paper-128", 36)):
        assert (
            decide(resolve(preset=preset, assignments=["rollout_gpus=null"])).cluster.rollout_gpus
            == rollout_gpus
        )


def test_one_device_takes_turns() -> None:
    recipe = decide(small("gpus=1", "model=Qwen3-0.6B"))
    assert (recipe.cluster.rollout_gpus, recipe.cluster.elastic_gpus) == (None, 1)
    times = limit(recipe, 1)
    assert times == in_turn(recipe, 1)
    assert times.train_s == times.generate_s


def test_schedules_that_never_overlap_use_every_device_for_both() -> None:
    assert decide(small("schedule=sync")).cluster.elastic_gpus == 16


def test_a_large_cluster_is_planned_on_an_equal_part_of_it() -> None:
    recipe = resolve(preset="scale", assignments=["gpus=4096", "batch.groups=16384"])
    parts = num_parts(recipe)
    assert parts > 1
    assert recipe.cluster.gpus % parts == recipe.batch.groups % parts == 0
    odd = replace(recipe, batch=replace(recipe.batch, groups=16383))
    assert num_parts(odd) == 1


def test_a_plan_is_no_slower_than_its_neighbours_allow_for() -> None:
    data = "data={train: {name: rows.jsonl, options: {split: x}}}"
    plan = make_plan(small("max_staleness=2", data, "rewards=[{function: 'a.py:f', options: {x: 1}}]"))
    assert plan.recipe.control.max_staleness <= 2
    sync = next(option.result for option in plan.options if option.what == "schedule")
    assert plan.result.step_time_s < sync.step_time_s
    assert plan.result.lost_trajectories == plan.result.duplicated_trajectories == 0
