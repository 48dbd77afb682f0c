"""Packing, schedules and the optimizer by themselves."""

import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dora_rl.core.errors import ConfigError
from dora_rl.core.recipe.trainer_config import LoraConfig, OptimizerConfig, ScheduleConfig, TrainerConfig
from dora_rl.model.config import ModelConfig
from dora_rl.model.tiny import seeded_decoder
from dora_rl.trainer.microbatch import packed_into
from dora_rl.trainer.optimizer import Optimizer
from dora_rl.trainer.policy import Policy
from dora_rl.trainer.ranks import Alone
from dora_rl.trainer.schedule import share_of_peak
from dora_rl.trainer.train_batch import TrainBatch
from dora_rl.trainer.trained_weights import FullWeights
from dora_rl.trainer.trainer_factory import trainer_of


@given(
    lengths=st.lists(st.integers(1, 50), max_size=40),
    max_tokens=st.integers(1, 120),
    multiple=st.integers(1, 5),
)
def test_every_trajectory_is_in_one_bin_that_holds_it(
    lengths: list[int], max_tokens: int, multiple: int
) -> None:
    bins = packed_into(lengths, max_tokens, multiple=multiple)
    assert sorted(index for members in bins for index in members) == list(range(len(lengths)))
    assert len(bins) % multiple == 0
    for members in bins:
        assert len(members) <= 1 or sum(lengths[i] for i in members) <= max_tokens


def test_bins_are_nearly_full_and_nearly_equal() -> None:
    lengths = [16 + (7919 * i) % 1000 for i in range(300)]
    loads = [sum(lengths[i] for i in members) for members in packed_into(lengths, 16_384, multiple=4)]
    assert len(loads) == 4 * math.ceil(sum(lengths) / 16_384 / 4)
    assert max(loads) - min(loads) < 0.01 * max(loads)


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        (ScheduleConfig(), [1, 1, 1, 1]),
        (ScheduleConfig(warmup_updates=3), [0.25, 0.5, 0.75, 1]),
        (ScheduleConfig(kind="linear", total_updates=4), [1, 0.75, 0.5, 0.25]),
        (ScheduleConfig(kind="cosine", total_updates=4, floor=0.5), [1, 0.9268, 0.75, 0.5732]),
        (ScheduleConfig(kind="linear", total_updates=2, floor=0.1), [1, 0.55, 0.1, 0.1]),
    ],
)
def test_schedules(schedule: ScheduleConfig, expected: list[float]) -> None:
    assert [share_of_peak(schedule, update) for update in range(4)] == pytest.approx(expected, abs=1e-4)


def test_a_schedule_without_an_end_is_refused() -> None:
    with pytest.raises(ConfigError, match="no end"):
        ScheduleConfig(kind="cosine")
    with pytest.raises(ConfigError, match="warm-up"):
        ScheduleConfig(warmup_updates=5, total_updates=5)
    with pytest.raises(ConfigError, match="lm_head"):
        LoraConfig(targets=("lm_head",))


def test_an_update_is_that_of_torch_on_clipped_gradients(model: ModelConfig) -> None:
    weights = FullWeights(Policy(seeded_decoder(model, seed=0)), torch.float32)
    config = OptimizerConfig(learning_rate=1e-2, weight_decay=0.1, max_grad_norm=0.5, beta2=0.99)
    optimizer = Optimizer(weights, config, Alone())
    plain = seeded_decoder(model, seed=0)
    matrices = [own for own in plain.parameters() if own.dim() > 1]
    others = [own for own in plain.parameters() if own.dim() == 1]
    theirs = torch.optim.AdamW(
        [{"params": matrices, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}],
        lr=1e-2,
        betas=(0.9, 0.99),
    )
    generator = torch.Generator().manual_seed(0)
    for _ in range(3):
        for used, own in zip(weights.policy.decoder.parameters(), plain.parameters(), strict=True):
            own.grad = torch.randn(own.shape, generator=generator)
            (used * (own.grad / 4)).sum().backward()
        norm = torch.nn.utils.clip_grad_norm_(plain.parameters(), 0.5)
        theirs.step()
        update = optimizer.update(scale=4.0)
        assert update.grad_norm == pytest.approx(norm.item(), rel=1e-5)
    for (name, used), own in zip(weights.policy.decoder.named_parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(used, own, rtol=1e-4, atol=1e-6, msg=name)


@pytest.mark.parametrize("max_response_tokens", [None, 5])
def test_a_rehearsal_changes_nothing(
    model: ModelConfig, make_batch: Callable[..., TrainBatch], max_response_tokens: int | None
) -> None:
    config = TrainerConfig(micro_batch_tokens=40)
    fresh, rehearsed = (
        trainer_of(seeded_decoder(model, seed=0), config, max_response_tokens=max_response_tokens)
        for _ in range(2)
    )
    passes: list[int] = []
    rehearsed.weights.policy.decoder.register_forward_hook(lambda *_: passes.append(1))
    rehearsed.rehearse()
    assert passes, "it ran nothing"
    assert not rehearsed.weights.gradients()
    for _ in range(2):
        ours, theirs = rehearsed.train(make_batch()), fresh.train(make_batch())
        assert ours | {"step_time": 0.0} == theirs | {"step_time": 0.0}
    for name, tensor in fresh.served_tensors().items():
        assert torch.equal(tensor, rehearsed.served_tensors()[name]), name
