"""Whole runs whose instances are vLLM's engines: the laws hold, through deaths and a resume."""

import json
from pathlib import Path

import pytest

from dora_rl.core.history import History
from dora_rl.core.inputs import InstanceJoined, InstanceLost
from dora_rl.core.recipe import Checkpoints, Control
from dora_rl.core.recipe.generation import EngineSettings
from dora_rl.engines.config import EngineConfig, Limits
from dora_rl.model.tiny import save_tiny
from dora_rl.run.run_layout import LiveLayout
from dora_rl.run.run_setup import DeviceLayout, RunSetup

from .conftest import run_setup
from .test_crashes import KILL, check, run, summary

pytest.importorskip("vllm")
pytestmark = [pytest.mark.vllm, pytest.mark.timeout(900), pytest.mark.filterwarnings("ignore")]

LIMITS = Limits(
    num_blocks=64, block_size=32, num_host_blocks=16, max_running=16, step_tokens=64, max_positions=512
)


def vllm_setup(where: Path, *, instances: int, max_staleness: int) -> RunSetup:
    save_tiny(where / "model", head_dim=32)
    return run_setup(
        where / "model",
        where / "run",
        steps=16,
        control=Control(max_staleness=max_staleness, rebalance_period_s=0.3, silence_s=20.0),
        engine=EngineSettings(kind="vllm", report_every_s=0.05),
        engine_config=EngineConfig(limits=LIMITS, max_versions=1),
        layout=DeviceLayout(instances=instances),
        checkpoints=Checkpoints(every=4),
    )


def test_two_instances_keep_the_laws_through_the_death_of_both_and_of_the_run(tmp_path: Path) -> None:
    setup = vllm_setup(tmp_path, instances=2, max_staleness=2)
    ended = run(setup, [[60, KILL, "workers.instance"], [160, KILL, "self"]], timeout_s=400)
    assert ended.returncode == -9
    told = summary(run(setup, [], is_first=False, timeout_s=400))
    assert told["steps"] == 16
    check(setup)
    events = [event for event, _ in History(LiveLayout(root=tmp_path / "run").events)]
    specs = {each.spec for each in events if isinstance(each, InstanceJoined)}
    assert {(each.max_versions, each.moves_kv, each.continues) for each in specs} == {(1, True, True)}
    assert any(isinstance(each, InstanceLost) for each in events)


def test_one_instance_serves_a_synchronous_run(tmp_path: Path) -> None:
    setup = vllm_setup(tmp_path, instances=1, max_staleness=0)
    assert summary(run(setup, [], timeout_s=400))["steps"] == 16
    check(setup)
    lines = map(json.loads, LiveLayout(root=tmp_path / "run").metrics_log.read_text().splitlines())
    assert {line["staleness/max"] for line in lines if "staleness/max" in line} == {0}
