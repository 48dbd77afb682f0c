"""What is said of live trials: areas under reward curves, and where the R that control finds stands."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from dora_rl.bench.learning import grid_views, live_trials, staleness_grid, target_sweep
from dora_rl.bench.learning.live_trials import LiveTrial, TrialRun
from dora_rl.bench.learning.staleness_grid import GridRun, GridScope, StalenessGrid, run_grid
from dora_rl.bench.learning.target_sweep import TargetLevel, TargetScope, TargetSweep, run_sweep
from dora_rl.cli.bench_trials import numbers
from dora_rl.core.errors import ConfigError
from dora_rl.core.recipe.loss_configs import TisConfig
from dora_rl.core.recipe.resolution import resolve_recipe


def trial_run(*rewards: float, step_s: float = 1.0, staleness: float = 1.0, **others: Any) -> TrialRun:
    return TrialRun(
        rewards=rewards,
        published_s=tuple(step_s * number for number in range(len(rewards))),
        step_s=step_s,
        staleness_mean=staleness,
        **{"held_out": (), "staleness_least": None, "staleness_max": 1, "idle_versions": 0, "clip_share": 0.0}
        | {"policy_kl": 0.0}
        | others,
    )


def grid_run(loss: str, staleness: int, seed: int, run: TrialRun) -> GridRun:
    return GridRun(loss=loss, staleness=staleness, seed=seed, run=run)


def level(ratio: float | None, step_s: float, staleness: float) -> TargetLevel:
    return TargetLevel(ratio=ratio, runs=(trial_run(0.5, step_s=step_s, staleness=staleness),))


# --- the grid -----------------------------------------------------------------------------------


def test_by_second_a_slow_run_has_learned_less() -> None:
    rewards = (0.0, 0.2, 0.4, 0.6)
    fast, slow = (grid_run("tis", 1, 0, trial_run(*rewards, step_s=s)) for s in (1.0, 2.0))
    assert fast.reward_by_step == slow.reward_by_step == pytest.approx(0.3)
    # Each step's reward counts for the seconds that it took.
    assert fast.reward_by_second(3.0) == pytest.approx((0.2 + 0.4 + 0.6) / 3)
    assert slow.reward_by_second(3.0) == pytest.approx((2 * 0.2 + 1 * 0.4) / 3)


def test_a_cell_has_the_seeds_of_one_loss_at_one_staleness_in_the_order_they_were_asked_for() -> None:
    runs = [grid_run(loss, k, seed, trial_run(0.1 * seed, 0.1 * seed))
            for seed in (0, 1) for k in (3, 0) for loss in ("tis", "cispo")]  # fmt: skip
    grid = StalenessGrid(title="", runs=tuple(runs))
    assert [(cell.loss, cell.staleness) for cell in grid.cells] == [
        ("tis", 0), ("tis", 3), ("cispo", 0), ("cispo", 3)
    ]  # fmt: skip
    cell = grid.cells[0]
    assert cell.mean(lambda each: each.reward_by_step) == pytest.approx(0.05)
    assert cell.spread(lambda each: each.reward_by_step) == pytest.approx(0.05)
    assert grid_views.show(grid).row_count == 4
    assert len(grid_views.draw(grid).axes) == 4
    assert grid_views.flat(grid.runs[0], grid.horizon_s)["held_out_after"] is None


def test_a_trial_of_the_grid_changes_the_loss_and_the_staleness_alone(tmp_path: Path) -> None:
    ran = run_fake_grid(tmp_path, GridScope(recipe="demo", assignments=("batch.groups=4",), losses=("tis",),
                                            staleness=(6,), seeds=(2,), steps=50, directory=""))  # fmt: skip
    recipe, asked = ran[0].recipe, resolve_recipe("demo")
    assert recipe.algorithm == replace(asked.algorithm, loss=TisConfig())
    assert (recipe.control.schedule, recipe.control.staleness_bound) == ("steps_off", 6)
    assert (recipe.seed, recipe.steps, recipe.batch.groups) == (2, 50, 4)
    # The rate falls over the steps there are.
    assert recipe.optimizer.learning_rate_schedule.total_updates == 50


def test_the_cells_of_the_first_seed_are_run_first(tmp_path: Path) -> None:
    scope = GridScope(recipe="demo", assignments=(), losses=("grpo", "tis"), staleness=(0, 1), seeds=(5, 6),
                      steps=8, directory="")  # fmt: skip
    assert [trial.recipe.seed for trial in run_fake_grid(tmp_path, scope)] == [5] * 4 + [6] * 4


def run_fake_grid(tmp_path: Path, scope: GridScope) -> list[LiveTrial]:
    ran: list[LiveTrial] = []

    def fake(trials: list[LiveTrial], **choices: object) -> dict[str, TrialRun]:
        ran.extend(trials)
        return {trial.name: trial_run(0.5, 0.5) for trial in trials}

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(staleness_grid, "run_trials", fake)
        run_grid(replace(scope, directory=str(tmp_path)), at_once=1, tell=lambda text: None)
    return ran


# --- the sweep of R -----------------------------------------------------------------------------


def test_the_found_r_is_held_against_the_freshest_one_that_is_fast() -> None:
    sweep = TargetSweep(title="", levels=(
        level(1.0, 1.5, 0.5), level(1.5, 1.02, 1.4), level(2.0, 1.0, 1.9), level(3.0, 1.01, 2.8),
        level(None, 1.03, 1.6),
    ))  # fmt: skip
    assert sweep.freshest_fast.ratio == 1.5
    assert sweep.finding.endswith("found by control: 1.030 s at a mean staleness of 1.60, +0.20")
    assert target_sweep.show(sweep).row_count == 5
    assert target_sweep.draw(sweep).axes


def test_a_sweep_fixes_r_in_batches_and_lets_control_find_it_last(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[LiveTrial] = []

    def fake(trials: list[LiveTrial], **choices: object) -> dict[str, TrialRun | None]:
        ran.extend(trials)
        return {trial.name: None if trial.name == "2-0" else trial_run(0.5, 0.5) for trial in trials}

    monkeypatch.setattr(target_sweep, "run_trials", fake)
    scope = TargetScope(recipe="demo", assignments=("control.active_groups=99",), ratios=(1.25, 2.0),
                        seeds=(0, 1), steps=8, directory="/nowhere")  # fmt: skip
    sweep = run_sweep(scope, at_once=1, tell=lambda text: None)
    assert [trial.recipe.control.active_groups for trial in ran] == [40, 64, None] * 2
    assert sweep.failed == ("2-0",)
    assert [(each.ratio, len(each.runs)) for each in sweep.levels] == [(1.25, 2), (2.0, 1), (None, 2)]


# --- running them -------------------------------------------------------------------------------


def test_one_that_fails_is_named_and_the_others_go_on(tmp_path: Path) -> None:
    recipe = resolve_recipe("demo", ["model=/no/such/model"])
    trials = [LiveTrial(name=name, recipe=recipe, directory=str(tmp_path / name)) for name in "ab"]
    told: list[str] = []
    done = live_trials.run_trials(trials, at_once=2, tell=told.append)
    assert done == {"a": None, "b": None}
    assert all("FAILED" in line and "/no/such/model" in line for line in told)


def test_an_interrupt_keeps_what_is_done(tmp_path: Path) -> None:
    recipe = resolve_recipe("demo")
    trials = [LiveTrial(name=name, recipe=recipe, directory=str(tmp_path / name)) for name in "ab"]
    told: list[str] = []

    class Pool(ThreadPoolExecutor):
        def __init__(self, *rest: object) -> None:
            super().__init__(1)

    def ran(trial: LiveTrial) -> TrialRun:
        if trial.name == "b":
            raise KeyboardInterrupt
        return trial_run(0.5, 0.6)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(live_trials, "ProcessPoolExecutor", Pool)
        patched.setattr(live_trials, "run_trial", ran)
        done = live_trials.run_trials(trials, at_once=1, tell=told.append)
    assert list(done) == ["a"]
    assert told[-1] == "interrupted: 1 of 2 runs are compared"


@pytest.mark.parametrize("text", ["", "x", "1,-2", "1;2"])
def test_what_is_no_list_of_numbers_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="takes numbers with commas"):
        numbers(text, int, "--seeds")


def test_numbers_are_taken_once_each() -> None:
    assert numbers("0, 1,1,6", int, "--staleness") == (0, 1, 6)


@pytest.mark.slow
def test_a_live_run_of_steps_off_is_exactly_as_old_as_asked(tmp_path: Path) -> None:
    scope = GridScope(recipe="demo", assignments=("batch.groups=4", "warm_start.steps=20"), losses=("cispo",),
                      staleness=(2,), seeds=(0,), steps=10, directory=str(tmp_path))  # fmt: skip
    (ran,) = run_grid(scope, at_once=1, tell=lambda text: None).runs
    assert (ran.run.staleness_mean, ran.run.staleness_max) == (2.0, 2)
    assert len(ran.run.rewards) == 10
    assert ran.gain is not None
    assert not list(tmp_path.iterdir())
