"""Words and tables: the bottleneck is the side that never waits; broken laws are counted, not hidden."""

import csv
from pathlib import Path

import pytest
from msgspec.structs import replace

from dora_rl.observe.result_words import all_clear, bottleneck
from dora_rl.observe.tables import write_csv
from dora_rl.sim.simulated_run import Result, simulate
from dora_rl.sim.simulation_setup import complete, resolve


@pytest.fixture(scope="module")
def result() -> Result:
    asked = [
        "batch.groups=4",
        "group_size=2",
        "gpus=4",
        "rollout_gpus=2",
        "tensor_parallel=1",
        "rows=20",
        "steps=3",
    ]
    return simulate(complete(resolve(assignments=asked)))


@pytest.mark.parametrize(
    ("max_staleness", "trainer_idle", "instance_idle", "window_stall_s", "who"),
    [
        (3, 0.01, 0.5, 0.0, "the trainer"),
        (0, 0.60, 0.5, 0.0, "the tail"),
        (3, 0.30, 0.5, 9.0, "stragglers"),
        (3, 0.30, 0.1, 0.0, "generation"),
        (3, 0.30, 0.5, 0.0, "waiting"),
    ],
)
def test_the_bottleneck_is_named(
    result: Result,
    max_staleness: int,
    trainer_idle: float,
    instance_idle: float,
    window_stall_s: float,
    who: str,
) -> None:
    changed = replace(
        result,
        max_staleness=max_staleness,
        trainer_idle_fraction=trainer_idle,
        instance_idle_fraction=instance_idle,
        window_stall_s=window_stall_s,
        starved_s=5.0,
    )
    assert bottleneck(changed).startswith(who)


def test_more_gpus_are_not_advised_where_there_are_none(result: Result) -> None:
    starving = replace(
        result, max_staleness=3, trainer_idle_fraction=0.3, instance_idle_fraction=0.1, window_stall_s=0.0
    )
    assert "more rollout GPUs would help" in bottleneck(starving)
    advice = bottleneck(starving, is_on_cpus=True)
    assert "GPU" not in advice
    assert "more instances, on more cores, would help" in advice


@pytest.mark.parametrize(
    ("change", "words"),
    [(0.042, "adds 4.2%"), (-0.1, "takes 10.0%"), (0.001, "changes nothing"), (None, "would help")],
)
def test_what_was_tried_is_not_advised_against_the_outcome(
    result: Result, change: float | None, words: str
) -> None:
    stalled = replace(result, max_staleness=3, trainer_idle_fraction=0.3, window_stall_s=9.0, starved_s=5.0)
    tried = {} if change is None else {"max_staleness": change}
    assert f"a greater max_staleness {words}" in bottleneck(stalled, tried=tried)


def test_devices_that_take_turns_have_no_side_that_waits(result: Result) -> None:
    changed = replace(result, elastic_gpus=result.gpus, rollout_gpus=0, trainer_idle_fraction=0.6)
    assert bottleneck(changed).startswith("taking turns")


def test_broken_laws_are_counted(result: Result) -> None:
    assert "none lost" in all_clear(result)
    broken = all_clear(replace(result, lost_trajectories=3, mixed_version_trajectories=1200))
    assert "3 lost" in broken
    assert "1,200 of more than one version" in broken
    assert "none" not in broken


def test_a_csv_file_has_a_header_and_a_line_for_each_row(tmp_path: Path) -> None:
    path = write_csv(tmp_path / "deep" / "rows.csv", [{"a": 1, "b": None}, {"a": 2.5, "b": "x, y"}])
    with path.open(encoding="utf-8") as file:
        assert list(csv.DictReader(file)) == [{"a": "1", "b": ""}, {"a": "2.5", "b": "x, y"}]
