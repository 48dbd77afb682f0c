"""A recipe may name a cluster: where there is none, a sentence says so before anything is prepared."""

from pathlib import Path

import pytest

import dora_rl
from dora_rl.api.run_place import run_place, with_spares
from dora_rl.core.errors import UserError
from dora_rl.core.recipe import Cluster
from dora_rl.core.recipe.resolution import resolve_recipe
from dora_rl.core.recipe.unused_keys import training_remarks
from dora_rl.launch.cluster import RayLaunch
from dora_rl.launch.local import LOCAL, LocalLaunch
from dora_rl.launch.spares import SpareLaunch


def test_without_ray_a_run_on_a_cluster_is_refused_before_it_is_prepared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dora_rl.launch.cluster.find_spec", lambda name: None)
    monkeypatch.setattr("dora_rl.api.work.Preparation", None)
    with pytest.raises(UserError, match="needs Ray, which is not installed") as refused:
        dora_rl.train("demo", cluster={"ray": "auto"}, run={"directory": str(tmp_path / "run")})
    assert refused.value.hint is not None
    assert "ray" in refused.value.hint
    assert not (tmp_path / "run").exists()


def test_ray_client_is_refused_for_nothing_could_dial_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dora_rl.launch.cluster.find_spec", lambda name: "found")
    with pytest.raises(UserError, match="Ray Client"):
        RayLaunch("ray://somewhere:10001")


def test_without_a_cluster_or_with_a_launch_of_the_caller_s_own_that_is_what_starts_workers() -> None:
    own, here = LocalLaunch(), Path()
    with run_place(Cluster(), LOCAL, print, here) as plain:
        assert plain.launch is LOCAL
    with run_place(Cluster(ray="auto"), own, print, here) as given:
        assert given.launch is own


def test_an_address_to_dial_without_a_cluster_is_said_to_be_of_no_use() -> None:
    alone = resolve_recipe({"cluster": {"host": "10.0.0.1"}})
    assert any("cluster.host is set and not used" in each for each in training_remarks(alone))
    both = resolve_recipe({"cluster": {"host": "10.0.0.1", "ray": "auto"}})
    assert not any("cluster.host" in each for each in training_remarks(both))


def test_spares_are_started_beside_a_gpu_and_only_for_engines_that_need_them(tmp_path: Path) -> None:
    driver = tmp_path / "driver"
    driver.touch()
    recipe = resolve_recipe("demo")
    on_cpu, of_vllm = (
        resolve_recipe("demo", ["devices.kind=cpu"]),
        resolve_recipe("demo", ["engine.kind=vllm"]),
    )
    with with_spares(recipe, LOCAL, driver) as launch:
        assert isinstance(launch, SpareLaunch)
        assert {spare.worker.rpartition(".")[2] for spare in launch._spares} == {
            "trainer_main",
            "instance_worker",
        }
    assert not launch._spares
    own = LocalLaunch()
    for case, given, gpu in (
        (on_cpu, LOCAL, driver),
        (of_vllm, LOCAL, driver),
        (recipe, own, driver),
        (recipe, LOCAL, tmp_path / "none"),
    ):
        with with_spares(case, given, gpu) as launch:
            assert launch is given
