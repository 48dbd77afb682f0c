"""`dora simulate`: one set-up in, one result out; logs replay; studies leave files behind."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dora_rl.core.yaml_text import load_yaml
from dora_rl.sim.simulated_run import Result
from dora_rl.sim.simulation_setup import PRESETS

Dora = Callable[..., Any]

SMALL = [
    "--set", "batch.groups=8", "--set", "group_size=4", "--set", "gpus=12", "--set", "rollout_gpus=4",
    "--set", "tensor_parallel=1", "--set", "slots=16", "--set", "rows=100", "--steps", "4",
]  # fmt: skip

PROMISED = {
    "schedule", "gpus", "steps", "step_time_s", "tokens_per_s", "limit_step_time_s", "rollout_only_fraction",
    "trainer_idle_fraction", "instance_idle_fraction", "staleness_mean", "staleness_max", "max_staleness",
    "window_stall_s", "migrations", "kv_bytes_moved", "lost_trajectories", "duplicated_trajectories",
    "mixed_version_trajectories",
}  # fmt: skip


def test_json_is_one_object_with_every_field_and_nothing_else(dora: Dora) -> None:
    called = dora("simulate", *SMALL, "--json")
    fields = json.loads(called.out)
    assert set(fields) == {*Result.__struct_fields__, "seconds"} >= PROMISED
    seconds = fields["seconds"]
    assert sum(seconds["trainer"].values()) == pytest.approx(seconds["wall_s"])
    assert sum(seconds["instances"].values()) == pytest.approx(4 * seconds["wall_s"])
    assert (fields["schedule"], fields["gpus"], fields["steps"]) == ("dora", 12, 4)
    assert called.err == ""


def test_the_same_seed_gives_the_same_result_and_another_does_not(dora: Dora) -> None:
    first, again, other = (dora("simulate", *SMALL, "--seed", seed, "--json").out for seed in (1, 1, 2))
    assert first == again
    assert first != other


def test_words_name_the_step_time_the_bottleneck_and_the_laws(dora: Dora) -> None:
    out = dora("simulate", *SMALL).out
    for word in ("step time", "zero-bubble limit", "tokens/s", "staleness", "bottleneck", "none lost"):
        assert word in out


def test_no_limit_is_named_where_redundant_groups_are_aborted(dora: Dora) -> None:
    redundant = [*SMALL, "--schedule", "async_ratio", "--set", "redundant_groups=3"]
    assert "no limit to compare with" in dora("simulate", *redundant).out
    assert json.loads(dora("simulate", *redundant, "--json").out)["limit_step_time_s"] is None


def test_keys_that_the_schedule_has_no_use_for_are_said_or_refused(dora: Dora) -> None:
    called = dora("simulate", *SMALL, "--schedule", "sync", "--set", "max_staleness=2")
    assert "warning: control.max_staleness = 2 is not used" in called.err
    refused = dora("simulate", *SMALL, "--schedule", "sync", "--set", "active_groups=9")
    assert refused.exit_code != 0
    assert "control.active_groups = 9 is not for control.schedule = sync" in refused.err


def test_a_recipe_file_is_overridden_by_options_before_or_after_it(dora: Dora, tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text("steps: 9\nbatch: {groups: 8, group_size: 4}\ncluster: {gpus: 4, slots: 16}\n")
    for arguments in ([recipe, "--steps", 3], ["--steps", 3, recipe]):
        fields = json.loads(dora("simulate", *arguments, "--set", "rows=50", "--json").out)
        assert (fields["steps"], fields["batch_groups"], fields["gpus"]) == (3, 8, 4)


def test_a_split_left_out_is_chosen_and_said(dora: Dora) -> None:
    called = dora("simulate", "--set", "batch.groups=4", "--set", "rows=20", "--steps", 2, "--json")
    assert called.err.startswith("planner: of 8 GPUs")
    assert 0 < json.loads(called.out)["rollout_gpus"] < 8


def test_list_shows_every_preset(dora: Dora) -> None:
    lines = dora("simulate", "--list").out.splitlines()
    assert [line.split()[0] for line in lines] == list(PRESETS)


def test_out_leaves_result_recipe_log_and_picture(dora: Dora, tmp_path: Path) -> None:
    called = dora("simulate", *SMALL, "--out", tmp_path / "run", "--json")
    left = {path.name for path in (tmp_path / "run").iterdir()}
    assert left == {"result.json", "recipe.yaml", "events.jsonl", "timeline.png", "seconds.png"}
    assert json.loads((tmp_path / "run" / "result.json").read_text()) == json.loads(called.out)
    again = dora("simulate", tmp_path / "run" / "recipe.yaml", "--json")
    assert again.out == called.out, "the resolved recipe describes the run completely"
    assert load_yaml(tmp_path / "run" / "recipe.yaml")["steps"] == 4


def test_a_log_replays(dora: Dora, tmp_path: Path) -> None:
    dora("simulate", *SMALL, "--log", tmp_path / "run.jsonl")
    called = dora("simulate", "replay", tmp_path / "run.jsonl")
    assert (called.exit_code, called.err) == (0, "")
    assert called.out.startswith("the same ")


def test_an_altered_log_fails_with_the_place_of_the_difference(dora: Dora, tmp_path: Path) -> None:
    log = tmp_path / "run.jsonl"
    dora("simulate", *SMALL, "--log", log)
    log.write_text(log.read_text().replace('"decision":"Take","batch":1', '"decision":"Take","batch":2', 1))
    called = dora("simulate", "replay", log)
    assert called.exit_code == 1
    assert called.err.startswith("error: seq ")
    assert "Take(batch=2" in called.err
    assert "Take(batch=1" in called.err


def test_a_torn_log_replays_as_far_as_it_goes_and_says_so(dora: Dora, tmp_path: Path) -> None:
    log = tmp_path / "run.jsonl"
    dora("simulate", *SMALL, "--log", log)
    log.write_bytes(log.read_bytes()[:-7])
    called = dora("simulate", "replay", log)
    assert called.exit_code == 0
    assert "breaks off at line" in called.err


@pytest.mark.parametrize("study", ["paper", "scale", "staleness", "ablation", "episodes"])
def test_every_study_explains_itself(dora: Dora, study: str) -> None:
    out = dora("simulate", "study", study, "--help").out
    assert f"dora simulate study {study}" in out
    assert "--out" in out


@pytest.mark.parametrize("study", ["staleness", "ablation"])
def test_a_study_prints_a_table_and_the_paths_of_its_files(
    dora: Dora, study: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny = {"batch": {"groups": 8, "group_size": 2}, "cluster": {"gpus": 16, "rollout_gpus": 6, "slots": 16},
            "task": {"rows": 64}}  # fmt: skip
    monkeypatch.setitem(PRESETS, "tiny", type(PRESETS["h100-8"])(summary="tiny", tree=tiny))
    called = dora("simulate", "study", study, "--preset", "tiny", "--steps", 6, "--out", tmp_path)
    assert called.exit_code == 0
    assert "step s" in called.out
    assert (tmp_path / f"{study}.csv").read_text().count("\n") > 10
    assert (tmp_path / f"{study}.png").read_bytes().startswith(b"\x89PNG")
    assert called.out.split()[-2:] == [str(tmp_path / f"{study}.{kind}") for kind in ("csv", "png")]


def test_a_shipped_recipe_is_simulated_by_name_and_says_what_it_assumes(dora: Dora) -> None:
    called = dora("simulate", "demo", "--steps", 2, "--set", "batch.groups=4")
    assert called.exit_code == 0, called.err
    assert "tiny on 8 x H800" in called.out
    assert "rows are not read" in called.err


def test_a_model_directory_has_its_shape_in_its_configuration(dora: Dora, tmp_path: Path) -> None:
    model = tmp_path / "m dir [x]"
    model.mkdir()
    (model / "config.json").write_text(
        json.dumps({
            "num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2,
            "head_dim": 16, "intermediate_size": 192, "vocab_size": 103, "tie_word_embeddings": True,
        })
    )  # fmt: skip
    by_directory = json.loads(dora("simulate", *SMALL, "--json", "--set", f"model='{model}'").out)
    assert by_directory == json.loads(dora("simulate", *SMALL, "--json", "--set", "model=tiny").out)
    (tmp_path / "recipe.yaml").write_text("model: 'm dir [x]'\n")
    called = dora("simulate", tmp_path / "recipe.yaml", *SMALL)
    assert called.exit_code == 0, called.err
    assert "m dir [x] on 12 x" in called.out.replace("\n", "")
    called = dora("simulate", *SMALL, "--set", f"model='{tmp_path / 'none'}'")
    assert "give a directory with a config.json" in called.err
