"""A trainer that was saved and loaded goes on as if nothing had happened; a damaged checkpoint is named."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from dora_rl.core.recipe.algorithm import AlgorithmConfig, CorrectionConfig
from dora_rl.core.recipe.presets import PRESETS
from dora_rl.core.recipe.trainer_config import (
    CriticConfig,
    LoraConfig,
    OptimizerConfig,
    ScheduleConfig,
    TrainerConfig,
)
from dora_rl.model.config import ModelConfig
from dora_rl.model.load import load_decoder
from dora_rl.model.tiny import seeded_decoder
from dora_rl.trainer.checkpoint import CheckpointError, load_checkpoint, save_checkpoint
from dora_rl.trainer.export import export
from dora_rl.trainer.step import StepError
from dora_rl.trainer.train_batch import TrainBatch
from dora_rl.trainer.trainer import Trainer
from dora_rl.trainer.trainer_factory import trainer_of

MakeBatch = Callable[..., TrainBatch]

BASE = {
    "optimizer": OptimizerConfig(
        learning_rate=1e-2,
        learning_rate_schedule=ScheduleConfig(kind="cosine", warmup_updates=2, total_updates=10),
    ),
    "updates": 2,
    "micro_batch_tokens": 60,
}
KINDS: dict[str, dict[str, object]] = {
    "bfloat16": {"serving_dtype": "bfloat16"},
    "float32": {"serving_dtype": "float32"},
    "lora": {"lora": LoraConfig(rank=4)},
    "lora and critic": {"lora": LoraConfig(rank=2), "critic": CriticConfig(), "algorithm": PRESETS["ppo"]},
    "critic": {"critic": CriticConfig(), "algorithm": PRESETS["ppo"]},
}


def make_trainer(model: ModelConfig, **fields: object) -> Trainer:
    return trainer_of(seeded_decoder(model, seed=0), TrainerConfig(**BASE | fields))  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", KINDS)
def test_four_steps_are_two_and_two(
    model: ModelConfig, make_batch: MakeBatch, tmp_path: Path, kind: str
) -> None:
    batches = [make_batch(seed=seed) for seed in range(4)]
    straight, first, second = (make_trainer(model, **KINDS[kind]) for _ in range(3))
    expected = [straight.train(batch) for batch in batches]
    for batch in batches[:2]:
        first.train(batch)
    save_checkpoint(first, tmp_path / "step_2")
    load_checkpoint(second, tmp_path / "step_2")
    assert second.version == 2
    for batch, theirs in zip(batches[2:], expected[2:], strict=True):
        ours = second.train(batch)
        assert ours | {"step_time": 0.0} == theirs | {"step_time": 0.0}
    for name, tensor in straight.served_tensors().items():
        assert torch.equal(tensor, second.served_tensors()[name]), name
    for name, master in straight.weights.masters.items():
        assert torch.equal(master, second.weights.masters[name]), name


def test_counts_the_level_of_the_gap_and_chance_come_back(model: ModelConfig, tmp_path: Path) -> None:
    saved, loaded = make_trainer(model), make_trainer(model)
    saved.watch.level, saved.optimizer.num_skipped, saved.optimizer.num_updates = 0.25, 3, 7
    torch.manual_seed(7)
    save_checkpoint(saved, tmp_path / "step_0")
    expected = torch.rand(3)
    load_checkpoint(loaded, tmp_path / "step_0")
    assert torch.equal(torch.rand(3), expected)
    assert (loaded.watch.level, loaded.optimizer.num_skipped) == (0.25, 3)
    assert loaded.optimizer.learning_rate == saved.optimizer.learning_rate < BASE["optimizer"].learning_rate


@pytest.fixture
def saved(model: ModelConfig, make_batch: MakeBatch, tmp_path: Path) -> Path:
    trainer = make_trainer(model)
    trainer.train(make_batch())
    save_checkpoint(trainer, tmp_path / "step_1")
    return tmp_path / "step_1"


@pytest.mark.parametrize(
    "file", ["masters.safetensors", "moments.safetensors", "random.safetensors", "kept.safetensors"]
)
@pytest.mark.parametrize("damage", ["truncated", "changed", "missing"])
def test_a_damaged_file_is_named(model: ModelConfig, saved: Path, file: str, damage: str) -> None:
    path = saved / file
    content = bytearray(path.read_bytes())
    if damage == "truncated":
        path.write_bytes(content[: len(content) // 2])
    elif damage == "changed":
        content[-1] ^= 1
        path.write_bytes(content)
    else:
        path.unlink()
    trainer = make_trainer(model)
    before = {name: master.clone() for name, master in trainer.weights.masters.items()}
    with pytest.raises(CheckpointError, match=file):
        load_checkpoint(trainer, saved)
    assert all(torch.equal(before[name], own) for name, own in trainer.weights.masters.items())


def test_a_changed_header_is_refused(model: ModelConfig, saved: Path) -> None:
    path = saved / "checkpoint.json"
    sealed = json.loads(path.read_text())
    sealed["content"]["version"] += 1
    path.write_text(json.dumps(sealed))
    with pytest.raises(CheckpointError, match="changed after it was written"):
        load_checkpoint(make_trainer(model), saved)
    path.write_text(path.read_text()[:50])
    with pytest.raises(CheckpointError, match="damaged"):
        load_checkpoint(make_trainer(model), saved)


def test_a_crash_while_writing_leaves_no_checkpoint(
    model: ModelConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = make_trainer(model)

    def crash(path: Path) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("dora_rl.trainer.checkpoint._flush", crash)
        with pytest.raises(KeyboardInterrupt):
            save_checkpoint(trainer, tmp_path / "step_0")
    assert not (tmp_path / "step_0").exists()
    save_checkpoint(trainer, tmp_path / "step_0")
    load_checkpoint(make_trainer(model), tmp_path / "step_0")


def test_a_checkpoint_of_another_configuration_is_refused(
    model: ModelConfig, saved: Path, tmp_path: Path
) -> None:
    with pytest.raises(CheckpointError, match="another model or configuration"):
        load_checkpoint(make_trainer(model, lora=LoraConfig()), saved)
    # A factor of rank 1 could be copied into one of any rank.
    save_checkpoint(make_trainer(model, lora=LoraConfig(rank=1)), tmp_path / "thin")
    wide = make_trainer(model, lora=LoraConfig(rank=4))
    before = {name: master.clone() for name, master in wide.weights.masters.items()}
    with pytest.raises(CheckpointError, match=r"lora_A.weight' is \[1, 64\], not \[4, 64\]"):
        load_checkpoint(wide, tmp_path / "thin")
    assert all(torch.equal(before[name], own) for name, own in wide.weights.masters.items())


def test_a_resumed_trainer_still_knows_the_versions_it_kept(
    model: ModelConfig, make_batch: MakeBatch, tmp_path: Path
) -> None:
    algorithm = AlgorithmConfig(correction=CorrectionConfig(low=0.5, high=1.5))
    # Each batch is of the version before the one that is trained, which a correction has to ask.
    batches = [make_batch(seed=seed, version=max(0, seed - 1)) for seed in range(4)]
    straight, first, second = (make_trainer(model, algorithm=algorithm, kept_versions=2) for _ in range(3))
    expected = [straight.train(batch) for batch in batches]
    for batch in batches[:2]:
        first.train(batch)
    save_checkpoint(first, tmp_path / "step_2")
    # Versions of a life it never had are forgotten.
    for batch in (*batches, *batches[3:]):
        second.train(batch)
    load_checkpoint(second, tmp_path / "step_2")
    for batch, theirs in zip(batches[2:], expected[2:], strict=True):
        assert "logprob_gap/mean" in theirs
        assert second.train(batch) | {"step_time": 0.0} == theirs | {"step_time": 0.0}
    for name, master in straight.weights.masters.items():
        assert torch.equal(master, second.weights.masters[name]), name


def test_nothing_is_saved_in_the_middle_of_a_step(model: ModelConfig, tmp_path: Path) -> None:
    trainer = make_trainer(model)
    trainer.begin_step(4)
    with pytest.raises(StepError, match="in progress"):
        save_checkpoint(trainer, tmp_path / "step_0")


def test_the_exported_directory_is_the_served_version(
    model: ModelConfig, make_batch: MakeBatch, tmp_path: Path
) -> None:
    trainer = make_trainer(model, serving_dtype="bfloat16")
    trainer.train(make_batch())
    export(trainer, tmp_path / "model")
    loaded = load_decoder(tmp_path / "model")
    for name, tensor in trainer.served_tensors().items():
        assert torch.equal(loaded.get_parameter(name), tensor)
