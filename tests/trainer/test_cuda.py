"""On a GPU in bfloat16 a step is that of the CPU in float32, as far as bfloat16 goes."""

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
import torch

from dora_rl.core.recipe.algorithm import AlgorithmConfig, CorrectionConfig, KlConfig
from dora_rl.core.recipe.loss_configs import AnyLossConfig, GspoConfig, Kimi15Config, PpoConfig, ToprConfig
from dora_rl.core.recipe.trainer_config import CriticConfig, GapConfig, OptimizerConfig, TrainerConfig
from dora_rl.model.config import DefaultRope, ModelConfig
from dora_rl.model.tiny import seeded_decoder
from dora_rl.trainer.checkpoint import (
    MASTERS,
    MOMENTS_FILE,
    load_checkpoint,
    prepare_snapshots,
    take_snapshot,
    write_snapshot,
)
from dora_rl.trainer.examples import prepared
from dora_rl.trainer.export import prepare_serving, served_on_host
from dora_rl.trainer.host_memory import HostMemory
from dora_rl.trainer.train_batch import TrainBatch
from dora_rl.trainer.trainer_factory import trainer_of

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    # The compiler warns about parts of torch that it uses itself.
    pytest.mark.filterwarnings("ignore"),
]

# Wide enough for the flash kernel, whose heads have a multiple of eight dimensions.
MODEL = ModelConfig(
    family="qwen3",
    vocab_size=61,
    hidden_size=128,
    intermediate_size=256,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    head_dim=64,
    max_positions=512,
    norm_eps=1e-6,
    rope=DefaultRope(theta=1e4),
    is_tied=True,
)
CONFIG = TrainerConfig(
    optimizer=OptimizerConfig(learning_rate=1e-4),
    serving_dtype="float32",
    micro_batch_tokens=60,
    gap=GapConfig(max_mean=1e3),
)


def test_a_step_on_the_gpu_is_the_step_on_the_cpu(make_batch: Callable[..., TrainBatch]) -> None:
    cpu = trainer_of(seeded_decoder(MODEL, seed=0), CONFIG)
    fast = msgspec.structs.replace(CONFIG, serving_dtype="bfloat16")
    gpu = trainer_of(seeded_decoder(MODEL, seed=0).cuda(), fast)
    for seed in range(2):
        expected, ours = (each.train(make_batch(seed=seed)) for each in (cpu, gpu))
        for name in ("loss", "entropy", "ratio_mean", "grad_norm"):
            assert ours[name] == pytest.approx(expected[name], rel=0.05, abs=0.01), name


@pytest.mark.parametrize("loss", [PpoConfig(), GspoConfig(), Kimi15Config(), ToprConfig()], ids=str)
@pytest.mark.parametrize("level", ["token", "sequence", "geometric"])
def test_the_host_never_waits_inside_a_micro_batch(
    make_batch: Callable[..., TrainBatch], loss: AnyLossConfig, level: str
) -> None:
    algorithm = AlgorithmConfig(
        loss=loss,
        kl=KlConfig(),
        entropy_bonus=0.1,
        correction=CorrectionConfig(level=level),  # type: ignore[arg-type]
    )
    config = msgspec.structs.replace(
        CONFIG, serving_dtype="bfloat16", algorithm=algorithm, kept_versions=1, critic=CriticConfig()
    )
    trainer = trainer_of(seeded_decoder(MODEL, seed=0).cuda(), config)
    # Compiles, fills caches and allocates; the step after it does not.
    trainer.train(make_batch())
    trainer.begin_step(4)
    groups = make_batch(version=1).groups
    ready = prepared(groups, trainer._scorer.scores_of(groups), algorithm)
    torch.cuda.set_sync_debug_mode("error")
    try:
        trainer._run(ready.examples)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    trainer.abandon_step()


def test_the_head_may_be_computed_again_instead(make_batch: Callable[..., TrainBatch]) -> None:
    metrics = []
    for fused_head in (True, False):
        config = msgspec.structs.replace(CONFIG, serving_dtype="bfloat16", fused_head=fused_head)
        metrics.append(trainer_of(seeded_decoder(MODEL, seed=0).cuda(), config).train(make_batch()))
    assert metrics[0]["loss"] == pytest.approx(metrics[1]["loss"], rel=1e-3, abs=1e-5)
    assert metrics[0]["grad_norm"] == pytest.approx(metrics[1]["grad_norm"], rel=1e-2)


def test_a_snapshot_stays_as_it_is_while_training_goes_on(
    make_batch: Callable[..., TrainBatch], tmp_path: Path
) -> None:
    saved, memory = trainer_of(seeded_decoder(MODEL, seed=0).cuda(), CONFIG), HostMemory()
    prepare_snapshots(saved, memory)
    for seed in range(2):
        saved.train(make_batch(seed=seed))
        snapshot = take_snapshot(saved, memory)
    assert snapshot is not None
    at_two = {name: tensor.clone() for name, tensor in saved.weights.masters.items()}
    third = saved.train(make_batch(seed=2))
    write_snapshot(snapshot, tmp_path / "step_2")
    resumed = trainer_of(seeded_decoder(MODEL, seed=1).cuda(), CONFIG)
    load_checkpoint(resumed, tmp_path / "step_2")
    assert all(torch.equal(resumed.weights.masters[name], each) for name, each in at_two.items())
    assert resumed.train(make_batch(seed=2))["loss"] == pytest.approx(third["loss"], rel=1e-4)


def test_the_memory_of_a_snapshot_is_taken_once(make_batch: Callable[..., TrainBatch]) -> None:
    trainer, memory = trainer_of(seeded_decoder(MODEL, seed=0).cuda(), CONFIG), HostMemory()
    prepare_snapshots(trainer, memory)
    prepare_serving(trainer, memory)
    places = set()
    for seed in range(2):
        trainer.train(make_batch(seed=seed))
        snapshot, served = take_snapshot(trainer, memory), served_on_host(trainer, memory)
        assert snapshot is not None
        assert served is not None
        tensors = [*snapshot.files[MASTERS].values(), *snapshot.files[MOMENTS_FILE].values()]
        places.add(tuple(tensor.data_ptr() for tensor in (*tensors, *served.values())))
        for name, tensor in trainer.weights.served():
            assert torch.equal(served[name], tensor.cpu()), name
    assert len(places) == 1
