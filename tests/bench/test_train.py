"""The benchmark runs on a CPU, counts what it says, and gives both sides the same loss."""

import json

import pytest
import torch
from typer.testing import CliRunner

from dora_rl.bench.sequence_lengths import SequenceLengths
from dora_rl.bench.train.train_batches import SHAPES, train_flops
from dora_rl.bench.train.train_bench import TrainBench, run_bench
from dora_rl.cli.main import app
from dora_rl.core.errors import ConfigError

SMALL = SequenceLengths(count=8, median=20.0, high=64)


def test_lengths_have_the_mean_they_are_said_to_have() -> None:
    lengths = SequenceLengths(count=20_000).draw()
    assert min(lengths) == 16
    assert max(lengths) == 4096
    assert sum(lengths) / len(lengths) == pytest.approx(600, rel=0.03)
    assert SequenceLengths(count=5).draw() == lengths[:5]


def test_arithmetic_is_six_times_the_parameters_and_attention() -> None:
    model = SHAPES["0.6B"]
    # 440,401,920 weights in the layers' matrices (Qwen3-0.6B), 155,582,464 in the head.
    short = train_flops(model, [2] * 10)
    assert short == pytest.approx(6 * (440_401_920 * 20 + 155_582_464 * 10), rel=1e-3)
    long_attention = train_flops(model, [2000]) - 1000 * train_flops(model, [2]) - 6 * 155_582_464 * 999
    assert long_attention == pytest.approx(12 * 28 * 2048 * 2000**2 / 2, rel=0.01)


def test_ours_and_the_baseline_have_the_same_loss() -> None:
    scope = TrainBench(shapes=("tiny",), device="cpu", lengths=SMALL, steps=1, baseline_tokens=(128,))
    ours, theirs = run_bench(scope).rows
    assert ours.failure is None
    assert theirs.failure is None
    assert ours.loss == pytest.approx(theirs.loss, rel=1e-3)
    assert ours.tokens_per_s > 0
    assert {"forward", "head", "backward", "optimizer"} <= ours.phases_s.keys()


def test_the_command_prints_a_table_or_json() -> None:
    arguments = ["bench", "train", "--device", "cpu", "--shapes", "tiny", "--sequences", "4", "--steps", "1"]
    as_json = CliRunner().invoke(app, [*arguments, "--no-baseline", "--json", "--profile"])
    assert as_json.exit_code == 0
    (row,) = json.loads(as_json.output)["rows"]
    assert row["name"] == "dora"
    assert row["failure"] is None
    assert row["kernels"][0]["total_s"] > 0


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is one")
def test_without_a_gpu_it_says_so() -> None:
    with pytest.raises(ConfigError, match="no CUDA device"):
        TrainBench(device="cuda")
    with pytest.raises(ConfigError, match="unknown shape '7B'"):
        TrainBench(device="cpu", shapes=("7B",))
