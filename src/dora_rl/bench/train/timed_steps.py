"""Whole train steps of the trainer, timed phase by phase."""

import msgspec
import torch

from dora_rl.bench.device import synchronised_s
from dora_rl.bench.train.phase_clock import (
    KernelTime,
    PhaseClock,
    forget_peak,
    kernels_of,
    peak_bytes,
    timed,
)
from dora_rl.bench.train.train_batches import batch_of, train_flops
from dora_rl.core.recipe.trainer_config import GapConfig, OptimizerConfig, TrainerConfig
from dora_rl.core.record import Record
from dora_rl.model.config import ModelConfig
from dora_rl.model.decoder import Decoder
from dora_rl.model.random_models import random_weights
from dora_rl.trainer.trainer import Trainer
from dora_rl.trainer.trainer_factory import trainer_of


class TrainerVariant(Record, frozen=True):
    """One way to run the same train step: a name and the trainer's settings."""

    name: str
    config: TrainerConfig


class TrainTiming(Record, frozen=True):
    """The figures of one variant, or why there are none."""

    shape: str
    name: str
    tokens_per_s: float = 0.0
    flops_per_s: float = 0.0
    step_s: float = 0.0
    peak_bytes: int = 0
    phases_s: dict[str, float] = msgspec.field(default_factory=dict)
    loss: float = 0.0
    kernels: tuple[KernelTime, ...] = ()
    """Longest kernels of one more step, where they were asked for."""
    failure: str | None = None


BASE = TrainerConfig(
    optimizer=OptimizerConfig(learning_rate=1e-6),
    # The recorded logprobs are made up; a gap says nothing here.
    gap=GapConfig(max_mean=1e3, max_growth=1e6),
    micro_batch_tokens=16_384,
    serving_dtype="bfloat16",
)


def variants(base: TrainerConfig) -> list[TrainerVariant]:
    """The alternatives to the trainer's default settings, one change at a time."""
    changes: dict[str, dict[str, object]] = {
        "8K micro-batches": {"micro_batch_tokens": 8192},
        "32K micro-batches": {"micro_batch_tokens": 32_768},
        "64K micro-batches": {"micro_batch_tokens": 65_536},
        "not compiled": {"compile": False},
        "flex attention": {"attention": "flex"},
        "one attention a sequence": {"attention": "packed"},
        "layers computed again": {"gradient_checkpointing": True},
        "head computed again": {"fused_head": False},
    }
    return [
        TrainerVariant(name=name, config=msgspec.structs.replace(base, **change))
        for name, change in changes.items()
    ]


def measure(
    shape: str,
    model: ModelConfig,
    variant: TrainerVariant,
    lengths: list[int],
    device: torch.device,
    *,
    steps: int,
    is_profiled: bool = False,
) -> TrainTiming:
    """Measure the mean of `steps` whole train steps after two that warm up."""
    trainer = trainer_of(random_decoder(model, device), variant.config)
    batch = batch_of(lengths, model.vocab_size)
    clock = PhaseClock(device)
    attach(clock, trainer)
    loss, _ = (trainer.train(batch)["loss"] for _ in range(2))
    clock.phases()
    forget_peak(device)
    started_s = synchronised_s(device)
    clock.mark("other")
    for _ in range(steps):
        trainer.train(batch)
    clock.mark("end")
    step_s = (synchronised_s(device) - started_s) / steps
    phases_s = {phase: seconds / steps for phase, seconds in clock.phases().items()}
    return TrainTiming(
        shape=shape,
        name=variant.name,
        tokens_per_s=sum(lengths) / step_s,
        flops_per_s=train_flops(model, lengths) / step_s,
        step_s=step_s,
        peak_bytes=peak_bytes(device),
        phases_s=phases_s,
        loss=loss,
        kernels=kernels_of(lambda: trainer.train(batch), device) if is_profiled else (),
    )


def random_decoder(model: ModelConfig, device: torch.device) -> Decoder:
    """A float32 decoder, its weights drawn on the device: large shapes would take minutes on the host."""
    decoder = Decoder.empty(model, device=device, dtype=torch.float32)
    decoder.load_state_dict(random_weights(model, seed=0, device=str(device), dtype=torch.float32))
    return decoder


def attach(clock: PhaseClock, trainer: Trainer) -> None:
    """Have a clock mark the phases of every micro-batch and update of a trainer."""
    policy = trainer.weights.policy
    policy.decoder.register_forward_pre_hook(lambda *_: clock.mark("forward"))
    policy.decoder.register_forward_hook(lambda *_: clock.mark("head"))
    policy.register_forward_hook(lambda *_: clock.mark("backward"))
    trainer.optimizer.update = timed(clock, "optimizer", trainer.optimizer.update)  # type: ignore[method-assign]
