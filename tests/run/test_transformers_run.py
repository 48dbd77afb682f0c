"""Whole runs of models that transformers computes: the laws hold, through deaths and a resume."""

import json
from pathlib import Path

import pytest
from transformers import AutoModelForCausalLM

from dora_rl.bench.tiny_models import save_tiny_hf
from dora_rl.core.history import History
from dora_rl.core.inputs import InstanceJoined, InstanceLost
from dora_rl.core.recipe import Checkpoints
from dora_rl.core.recipe.generation import EngineSettings
from dora_rl.core.recipe.trainer_config import TrainerSettings
from dora_rl.engines.config import EngineConfig, Limits
from dora_rl.model.characters import character_tokenizer
from dora_rl.model.tokenizer import save_tokenizer
from dora_rl.run.run_layout import LiveLayout
from dora_rl.run.run_setup import DeviceLayout, RunSetup

from .conftest import run_setup
from .test_crashes import KILL, check, run, summary

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]


LIMITS = Limits(
    num_blocks=256, block_size=16, num_host_blocks=64, max_running=16, step_tokens=64, max_positions=256
)


def transformers_setup(family: str, where: Path) -> RunSetup:
    directory = save_tiny_hf(family, where / "model")
    save_tokenizer(character_tokenizer(), directory)
    return run_setup(
        directory,
        where / "run",
        steps=8,
        trainer=TrainerSettings(model="transformers", serving_dtype="float32"),
        engine=EngineSettings(kind="transformers", report_every_s=0.1),
        engine_config=EngineConfig(limits=LIMITS, max_versions=4),
        layout=DeviceLayout(instances=2),
        checkpoints=Checkpoints(every=2),
    )


@pytest.mark.parametrize(("family", "moves_kv"), [("gpt2", True), ("gemma3", True), ("qwen3_next", False)])
def test_two_instances_keep_the_laws_through_the_death_of_both_and_of_the_run(
    family: str, moves_kv: bool, tmp_path: Path
) -> None:
    setup = transformers_setup(family, tmp_path)
    ended = run(setup, [(30, KILL, "workers.instance"), (80, KILL, "self")], timeout_s=180)
    assert ended.returncode == -9, ended.stderr[-2000:]
    assert summary(run(setup, [], is_first=False, timeout_s=180))["steps"] == 8
    check(setup)
    layout = LiveLayout(root=tmp_path / "run")
    events = [event for event, _ in History(layout.events)]
    assert {each.spec.moves_kv for each in events if isinstance(each, InstanceJoined)} == {moves_kv}
    assert any(isinstance(each, InstanceLost) for each in events)
    lines = map(json.loads, layout.metrics_log.read_text().splitlines())
    gaps = [line["logprob_gap/mean"] for line in lines if "logprob_gap/mean" in line]
    assert gaps
    assert max(gaps) < 1e-5
    trained = AutoModelForCausalLM.from_pretrained(tmp_path / "run/checkpoints/step_00008")
    before = AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    assert trained.config.model_type == before.config.model_type
    own = dict(before.named_parameters())
    assert any(not (each == own[name]).all() for name, each in trained.named_parameters())
