"""Two ranks train what one device trains: the same losses and weights, to rounding."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
import torch
from msgspec.structs import replace
from safetensors.torch import load_file

from dora_rl.core.recipe.algorithm import AlgorithmConfig, CustomAdvantageConfig, KlConfig
from dora_rl.core.recipe.loss_configs import CustomLossConfig
from dora_rl.core.recipe.presets import PRESETS
from dora_rl.core.recipe.trainer_config import CriticConfig, LoraConfig, OptimizerConfig, TrainerConfig
from dora_rl.model.config import Experts, ModelConfig
from dora_rl.model.hub_config import to_published
from dora_rl.model.load import load_decoder
from dora_rl.model.tiny import seeded_decoder
from dora_rl.trainer.train_batch import TrainBatch
from dora_rl.trainer.trainer_factory import trainer_of

MakeBatch = Callable[..., TrainBatch]

OWN = Path(__file__).parent / "user_algorithms.py"

EXPERTS = Experts(num_experts=4, num_active=2, intermediate_size=24, is_normalised=True)
CONFIGS = {
    "grpo, kl, checkpointed": TrainerConfig(
        algorithm=AlgorithmConfig(kl=KlConfig()),
        optimizer=OptimizerConfig(learning_rate=1e-3, weight_decay=0.1, max_grad_norm=0.01),
        serving_dtype="float32",
        micro_batch_tokens=40,
        gradient_checkpointing=True,
    ),
    "ppo with a critic": TrainerConfig(
        algorithm=PRESETS["ppo"],
        critic=CriticConfig(),
        optimizer=OptimizerConfig(learning_rate=1e-3),
        serving_dtype="float32",
        updates=2,
        micro_batch_tokens=100_000,
    ),
    "lora with a critic": TrainerConfig(
        algorithm=PRESETS["ppo"],
        critic=CriticConfig(),
        lora=LoraConfig(rank=4),
        optimizer=OptimizerConfig(learning_rate=1e-3),
        serving_dtype="float32",
        micro_batch_tokens=50,
    ),
    "a loss and an advantage of the user's own": TrainerConfig(
        algorithm=AlgorithmConfig(
            loss=CustomLossConfig(function=f"{OWN}:grpo"),
            advantage=CustomAdvantageConfig(function=f"{OWN}:against_batch"),
        ),
        optimizer=OptimizerConfig(learning_rate=1e-3),
        serving_dtype="float32",
        # So much that one rank has all of it, and the other none.
        micro_batch_tokens=100_000,
    ),
    "experts, balanced and checkpointed": TrainerConfig(
        optimizer=OptimizerConfig(learning_rate=1e-3),
        serving_dtype="float32",
        load_balance=1.0,
        gradient_checkpointing=True,
        # So little that every trajectory is balanced by itself, on whichever rank.
        micro_batch_tokens=1,
    ),
    "bfloat16": TrainerConfig(
        optimizer=OptimizerConfig(learning_rate=1e-3), serving_dtype="bfloat16", micro_batch_tokens=60
    ),
}


def run_ranks(directory: Path, config: TrainerConfig, batches: list[TrainBatch], model: ModelConfig) -> None:
    work = {"config": config, "batches": batches, "model": to_published(model)}
    (directory / "work.json").write_bytes(msgspec.json.encode(work))
    script = Path(__file__).with_name("ranks.py")
    started = [
        subprocess.Popen(
            [sys.executable, script, str(rank), "2", str(directory)], stderr=subprocess.PIPE, text=True
        )
        for rank in range(2)
    ]
    try:
        errors = [process.communicate(timeout=50)[1] for process in started]
    finally:
        for process in started:
            process.kill()
    assert [process.returncode for process in started] == [0, 0], errors[0] + errors[1]


SLOW = [pytest.param(name, marks=pytest.mark.slow) for name in list(CONFIGS)[1:]]


@pytest.mark.parametrize("name", [next(iter(CONFIGS)), *SLOW])
def test_two_ranks_are_one_device(
    model: ModelConfig, make_batch: MakeBatch, tmp_path: Path, name: str
) -> None:
    config = CONFIGS[name]
    if config.load_balance is not None:
        model = replace(model, family="qwen3_moe", experts=EXPERTS)
    # Three trajectories do not fill both ranks' micro-batches evenly, and of one a rank has nothing.
    few = make_batch(seed=2, groups=3, size=1)
    (pair,) = make_batch(seed=3, groups=1, size=2).groups
    half = replace(pair, members=(pair.members[0], replace(pair.members[1], loss_weight=0.0)))
    one = TrainBatch(groups=(half, *make_batch(seed=4, groups=1, size=2, loss_weight=0.0).groups))
    batches = [make_batch(seed=0), make_batch(seed=1), few, one]
    run_ranks(tmp_path, config, batches, model)
    alone = trainer_of(seeded_decoder(model, seed=0), config)
    expected = [alone.train(batch) for batch in batches]
    tolerance = 1e-3 if config.serving_dtype == "bfloat16" else 1e-5
    for rank in range(2):
        ours = json.loads((tmp_path / f"metrics_{rank}.json").read_text())
        for one, other in zip(ours, expected, strict=True):
            for key in ("loss", "grad_norm", "entropy", "ratio_mean", "trained/tokens"):
                assert one[key] == pytest.approx(other[key], rel=30 * tolerance, abs=tolerance), key
    served = load_file(tmp_path / "served")
    exported = load_decoder(tmp_path / "exported")
    for key, tensor in alone.served_tensors().items():
        assert torch.equal(served[key], exported.get_parameter(key))
        # Adam divides by the size of the gradient: where that is rounding, the direction is a coin's.
        close = (served[key].float() - tensor.float()).abs() < 10 * tolerance
        assert close.float().mean() > 0.999, key
