"""Presets are valid, decided set-ups; whatever a user says about one wins."""

from pathlib import Path
from typing import get_args

import pytest

from dora_rl.core.errors import ConfigError
from dora_rl.core.recipe import ScheduleName
from dora_rl.sim.simulation_setup import PRESETS, complete, resolve


@pytest.mark.parametrize("schedule", get_args(ScheduleName))
@pytest.mark.parametrize("preset", PRESETS)
def test_every_preset_is_a_complete_set_up_under_every_schedule(preset: str, schedule: str) -> None:
    recipe = complete(resolve(preset=preset, assignments=[f"schedule={schedule}"]))
    c = recipe.cluster
    assert recipe.control.schedule == schedule
    assert c.tensor_parallel is not None
    assert c.rollout_gpus or c.elastic_gpus


@pytest.mark.parametrize(("preset", "gpus", "rollout_gpus"), [("paper-64", 64, 20), ("paper-128", 128, 36)])
def test_a_paper_preset_divides_its_devices_by_schedule(preset: str, gpus: int, rollout_gpus: int) -> None:
    def cluster(schedule: str) -> tuple[int | None, int, int]:
        c = resolve(preset=preset, assignments=[f"schedule={schedule}"]).cluster
        return c.rollout_gpus, c.elastic_gpus, c.slots

    assert cluster("sync") == cluster("partial") == (None, gpus, 256)
    assert cluster("one_step_off") == cluster("dora_onset") == (gpus // 4, 0, 256)
    assert cluster("dora") == (rollout_gpus, 0, 512)


def test_both_paper_presets_share_one_calibration() -> None:
    small, large = (resolve(preset=f"paper-{gpus}") for gpus in (64, 128))
    assert small.simulation == large.simulation
    assert (small.model, small.batch, small.task) == (large.model, large.batch, large.task)


def test_an_override_wins_over_what_a_preset_adds_for_the_schedule() -> None:
    recipe = resolve(preset="paper-64", assignments=["schedule=dora_onset", "slots=99", "max_staleness=1"])
    assert (recipe.cluster.slots, recipe.control.max_staleness) == (99, 1)


def test_a_file_wins_over_a_preset_and_may_choose_the_schedule(tmp_path: Path) -> None:
    file = tmp_path / "recipe.yaml"
    file.write_text("control: {schedule: sync}\ncluster: {slots: 7}\n")
    recipe = resolve(preset="paper-64", file=file)
    assert (recipe.cluster.elastic_gpus, recipe.cluster.slots, recipe.batch.groups) == (64, 7, 512)


def test_lengths_of_another_kind_replace_a_presets_lengths(tmp_path: Path) -> None:
    file = tmp_path / "recipe.yaml"
    file.write_text("task: {lengths: {kind: empirical, path: lengths.json}}\n")
    assert resolve(preset="paper-64", file=file).task.lengths.max_tokens == 32768
    file.write_text("task: {lengths: {kind: lognormal, sigma: 0.5}}\n")
    assert resolve(preset="paper-64", file=file).task.lengths.max_tokens == 30_000


def test_a_decided_split_is_left_alone() -> None:
    recipe = resolve(preset="paper-64", assignments=["rollout_gpus=8"])
    assert complete(recipe) == recipe


def test_an_unknown_preset_is_an_error_that_names_the_known_ones() -> None:
    with pytest.raises(ConfigError) as raised:
        resolve(preset="paper")
    assert "paper-64" in str(raised.value.hint)
