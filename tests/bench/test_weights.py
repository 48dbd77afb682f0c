"""The bench runs real steps, and its shares are those of what they changed."""

import json
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from dora_rl.bench import delta_figures as measure
from dora_rl.bench.delta_figures import AdvancingModel
from dora_rl.cli.bench import app
from dora_rl.model.random_models import QWEN3_06B
from dora_rl.model.tiny import tiny_config
from dora_rl.weights.bits import patterns


@pytest.fixture(autouse=True)
def _tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "SMALL", tiny_config(90))


def test_a_step_changes_few_values_at_a_low_rate_and_more_at_a_higher_one(tmp_path: Path) -> None:
    slow, fast = measure.run_bench("cpu", tmp_path, steps=3)
    assert 0 < slow.changed_mean < 0.2 < 2 * fast.changed_mean
    assert slow.changed_mean < fast.changed_mean
    assert 0 < slow.delta_mean < fast.delta_mean


def test_a_step_moves_the_masters_and_versions_are_their_casts() -> None:
    training = AdvancingModel(tiny_config(90), device="cpu", learning_rate=1e-3, tokens=(2, 8))
    before = {name: tensor.clone() for name, tensor in training.version.items()}
    training.step()
    after = training.version
    assert any(not torch.equal(patterns(before[name]), patterns(after[name])) for name in after)
    assert all(
        torch.equal(patterns(after[name]), patterns(master.detach().bfloat16()))
        for name, master in training._masters.items()
    )


def test_the_cuda_shape_is_that_of_qwen3_600m() -> None:
    c = QWEN3_06B
    layer = c.hidden_size * (2 * c.q_size + 2 * c.kv_size + 3 * c.intermediate_size)
    assert 0.59e9 < c.vocab_size * c.hidden_size + c.num_layers * layer < 0.60e9


def test_the_command_prints_a_table_or_one_json_object() -> None:
    run = CliRunner().invoke(app, ["weights", "--steps", "2"])
    assert run.exit_code == 0
    assert "delta bytes" in run.stdout
    rows = json.loads(CliRunner().invoke(app, ["weights", "--steps", "2", "--json"]).stdout)
    assert [row["learning_rate"] for row in rows] == list(measure.LEARNING_RATES)
