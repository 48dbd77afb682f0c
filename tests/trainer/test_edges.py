"""The odd trajectories and groups that a run meets, each with a name; and what the metrics say of them."""

import logging
import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from dora_rl.algorithms.config import AlgorithmConfig, CorrectionConfig, OverlongConfig
from dora_rl.algorithms.presets import PRESETS
from dora_rl.core.errors import ConfigError
from dora_rl.model.config import ModelConfig
from dora_rl.model.tiny import seeded_decoder
from dora_rl.trainer.config import GapConfig, OptimizerConfig, TrainerConfig
from dora_rl.trainer.opening import trainer_of
from dora_rl.trainer.policy import Policy
from dora_rl.trainer.records import Group, TrainBatch, Trajectory, TrajectoryError
from dora_rl.trainer.step import StepError
from dora_rl.trainer.trainer import Trainer

MakeBatch = Callable[..., TrainBatch]
SILENT = GapConfig(max_mean=1e3, max_growth=1e6)


def make_trainer(model: ModelConfig, **fields: object) -> Trainer:
    settings: dict[str, object] = {
        "serving_dtype": "float32",
        "optimizer": OptimizerConfig(learning_rate=1e-2),
        "gap": SILENT,
    }
    return trainer_of(seeded_decoder(model, seed=0), TrainerConfig(**settings | fields))  # type: ignore[arg-type]


def member(response: tuple[int, ...] = (4, 5), reward: float = 0.0, **fields: object) -> Trajectory:
    made: dict[str, object] = {
        "prompt": (1, 2, 3),
        "response": response,
        "logprobs": (-4.0,) * len(response),
        "version": 0,
        "reward": reward,
    }
    return Trajectory(**made | fields)  # type: ignore[arg-type]


def batch_of(*groups: tuple[Trajectory, ...]) -> TrainBatch:
    return TrainBatch(groups=tuple(Group(id=i, members=own) for i, own in enumerate(groups)))


def weights_of(trainer: Trainer) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in trainer.served_tensors().items()}


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return all(torch.equal(one[name], other[name]) for name in one)


def test_a_nan_reward_is_masked_and_its_group_goes_on(model: ModelConfig) -> None:
    good = (member((4, 5), 0.0), member((6,), 1.0))
    with_nan, without = make_trainer(model), make_trainer(model)
    metrics = with_nan.train(batch_of((*good, member((9, 9), math.nan))))
    without.train(batch_of(good))
    assert metrics["masked/nan_reward"] == 1
    assert metrics["reward"] == 0.5
    assert same(weights_of(with_nan), weights_of(without))


def test_an_empty_response_counts_in_its_group_but_not_in_the_loss(model: ModelConfig) -> None:
    trainer = make_trainer(model)
    metrics = trainer.train(batch_of((member((), 0.0), member((4, 5), 1.0), member((6,), 1.0))))
    assert metrics["masked/empty_response"] == 1
    assert metrics["trained/trajectories"] == 2
    # Its reward of 0 is why the others have an advantage at all.
    assert metrics["grad_norm"] > 0


def test_a_one_token_response_is_trained_on(model: ModelConfig) -> None:
    trainer = make_trainer(model)
    metrics = trainer.train(batch_of((member((4,), 0.0), member((6,), 1.0))))
    assert metrics["trained/tokens"] == 2
    assert metrics["grad_norm"] > 0


@pytest.mark.parametrize("preset", ["grpo", "rloo", "gspo", "dr_grpo"])
def test_equal_rewards_change_nothing(model: ModelConfig, preset: str) -> None:
    trainer = make_trainer(model, algorithm=PRESETS[preset])
    before = weights_of(trainer)
    metrics = trainer.train(batch_of((member((4, 5), 0.3), member((6,), 0.3)), (member(reward=1.0),) * 2))
    assert metrics["frac_reward_zero_std"] == 1
    assert metrics["grad_norm"] == 0
    assert same(weights_of(trainer), before)


def test_a_group_of_one_has_nothing_to_compare_with(model: ModelConfig) -> None:
    trainer = make_trainer(model)
    metrics = trainer.train(batch_of((member(reward=1.0),)))
    assert metrics["groups_of_one"] == 1
    assert metrics["grad_norm"] == 0


def test_a_batch_without_anything_to_train_on_is_a_step_all_the_same(model: ModelConfig) -> None:
    trainer = make_trainer(model)
    before = weights_of(trainer)
    metrics = trainer.train(batch_of((member((), 1.0), member(reward=math.nan))))
    assert trainer.version == 1
    assert metrics["trained/tokens"] == 0
    assert same(weights_of(trainer), before)


def test_masks_are_counted_by_their_label(model: ModelConfig) -> None:
    algorithm = AlgorithmConfig(overlong=OverlongConfig(mask=True))
    trainer = make_trainer(model, algorithm=algorithm)
    metrics = trainer.train(
        batch_of(
            (
                member(reward=1.0),
                member((7,), loss_weight=0.0, label="tool failed"),
                member((8, 8), is_truncated=True),
                member((9,), loss_weight=0.0),
            )
        )
    )
    assert metrics["masked/tool_failed"] == metrics["masked/overlong"] == metrics["masked/zero_weight"] == 1
    assert metrics["completions/clipped_ratio"] == 0.25
    assert metrics["trained/trajectories"] == 1


def test_environment_tokens_are_not_in_the_loss(model: ModelConfig) -> None:
    trainer = make_trainer(model)
    mixed = member((4, 5, 6), 1.0, is_policy=(True, False, True), logprobs=(-4.0, -4.0))
    assert trainer.train(batch_of((mixed, member())))["trained/tokens"] == 4


def test_a_loss_that_is_not_finite_skips_the_update_and_is_counted(model: ModelConfig) -> None:
    trainer = make_trainer(model)
    trainer.train(batch_of((member(reward=1.0), member((7,)))))
    before = weights_of(trainer)
    broken = member((8, 8), 1.0, logprobs=(math.nan, -1.0))
    metrics = trainer.train(batch_of((broken, member())))
    assert metrics["updates/skipped"] == 1
    assert math.isnan(metrics["grad_norm"])
    assert same(weights_of(trainer), before)
    assert trainer.train(batch_of((member(reward=1.0), member((7,)))))["updates/skipped"] == 0
    assert not same(weights_of(trainer), before)


def test_metrics_tell_staleness_apart(model: ModelConfig) -> None:
    trainer = make_trainer(model)
    trainer.train(batch_of((member(reward=1.0), member((7,)))))
    metrics = trainer.train(
        batch_of(
            (member((4, 5), 1.0), member((6,))), (member(reward=1.0, version=1), member((8,), version=1))
        )
    )
    assert metrics["staleness/mean"] == 0.5
    assert metrics["staleness/max"] == 1
    assert metrics["staleness/0/tokens"] == metrics["staleness/1/tokens"] == 3
    shares = [metrics[f"staleness/{k}/ratio_mean"] for k in (0, 1)]
    assert sum(shares) / 2 == pytest.approx(metrics["ratio_mean"])
    assert metrics["staleness/1/policy_kl"] >= 0
    assert 0 <= metrics["staleness/0/clip_fraction"] <= 1


def recorded(trainer: Trainer, *responses: tuple[int, ...], shift: float = 0.0) -> TrainBatch:
    """A group whose recorded logprobs are the trainer's own, less a shift."""
    blank = batch_of(tuple(member(own, float(i), version=trainer.version) for i, own in enumerate(responses)))
    logprobs, _ = trainer._scorer.score(trainer.weights.policy, blank.groups[0].members)
    return batch_of(
        tuple(
            member(own, float(i), version=trainer.version, logprobs=tuple((found - shift).tolist()))
            for i, (own, found) in enumerate(zip(responses, logprobs, strict=True))
        )
    )


def test_the_gap_of_engine_and_trainer_is_measured_on_fresh_data_only(model: ModelConfig) -> None:
    trainer = make_trainer(model)
    assert trainer.train(recorded(trainer, (4, 5), (6,)))["logprob_gap/max"] < 1e-5
    metrics = trainer.train(recorded(trainer, (4, 5), (6,), shift=0.02))
    assert metrics["logprob_gap/mean"] == pytest.approx(0.02, abs=1e-4)
    assert "logprob_gap/mean" not in trainer.train(batch_of((member(reward=1.0), member((7,)))))


def test_a_gap_that_is_large_or_grows_is_a_warning(
    model: ModelConfig, caplog: pytest.LogCaptureFixture
) -> None:
    trainer = make_trainer(model, gap=GapConfig(max_mean=0.05, max_growth=3.0))
    flags = [
        trainer.train(recorded(trainer, (4, 5), (6,), shift=shift))["warnings/logprob_gap"]
        for shift in (0.002, 0.002, 0.02, 0.2)
    ]
    assert flags == [0, 0, 1, 1]
    warned = [record.message for record in caplog.records if record.levelno == logging.WARNING]
    assert len(warned) == 2
    assert "grew" in warned[0]
    assert "differ by" in warned[1]


def test_the_gap_of_stale_data_is_measured_under_its_own_version(model: ModelConfig) -> None:
    trainer = make_trainer(model)
    batch = recorded(trainer, (4, 5), (6,), shift=0.01)
    old = Policy(seeded_decoder(model, seed=0))
    for _ in range(2):
        trainer.train(batch)
    mean, largest = trainer.behaviour_gap(batch.groups, old)
    assert mean == pytest.approx(0.01, abs=1e-4)
    assert largest == pytest.approx(0.01, abs=1e-4)


def test_kept_versions_measure_and_correct_stale_data(model: ModelConfig) -> None:
    algorithm = AlgorithmConfig(correction=CorrectionConfig(treatment="masked", low=0.5, high=1.005))
    trainer = make_trainer(model, kept_versions=2, algorithm=algorithm)
    batch = recorded(trainer, (4, 5), (6,), shift=0.01)
    for expected_staleness in (0, 1):
        metrics = trainer.train(batch)
        assert metrics["staleness/max"] == expected_staleness
        assert metrics["logprob_gap/mean"] == pytest.approx(0.01, abs=1e-4)
        # exp(0.01) is out of bounds: every token's weight is zero.
        assert metrics["correction/out_fraction"] == 1
        assert metrics["grad_norm"] == 0
    # By now version 0 is no longer kept: nothing to compare with, so what is recorded is taken as it is.
    metrics = trainer.train(batch)
    assert "logprob_gap/mean" not in metrics
    assert metrics["grad_norm"] > 0


def test_a_correction_without_kept_versions_is_refused() -> None:
    with pytest.raises(ConfigError, match="none is kept"):
        TrainerConfig(algorithm=AlgorithmConfig(correction=CorrectionConfig()))


def test_an_overlong_penalty_needs_the_cap(model: ModelConfig) -> None:
    with pytest.raises(ConfigError, match="length cap"):
        make_trainer(model, algorithm=PRESETS["dapo"])


def test_data_from_a_cut_distribution_is_a_warning(
    model: ModelConfig, caplog: pytest.LogCaptureFixture
) -> None:
    trainer = make_trainer(model)
    assert trainer.train(batch_of((member(reward=1.0), member((7,)))))["warnings/cut_distribution"] == 0
    for _ in range(2):
        cut = batch_of((member(reward=1.0, is_cut=True), member((7,))))
        assert trainer.train(cut)["warnings/cut_distribution"] == 1
    assert sum("cut by top-k" in record.message for record in caplog.records) == 1


def test_greedy_trajectories_are_taken_at_temperature_one(model: ModelConfig) -> None:
    one, other = make_trainer(model), make_trainer(model)
    one.train(batch_of((member(reward=1.0, temperature=0.0), member((7,), temperature=0.0))))
    other.train(batch_of((member(reward=1.0), member((7,)))))
    assert same(weights_of(one), weights_of(other))


def test_a_step_takes_exactly_its_groups(model: ModelConfig, make_batch: MakeBatch) -> None:
    trainer, groups = make_trainer(model), make_batch(groups=3).groups
    with pytest.raises(StepError, match="no step"):
        trainer.add(groups)
    trainer.begin_step(2)
    with pytest.raises(StepError, match="lacks 2"):
        trainer.add(groups)
    trainer.add(groups[:1])
    with pytest.raises(StepError, match="already"):
        trainer.add(groups[:1])
    with pytest.raises(StepError, match="lacks 1"):
        trainer.finish_step()
    with pytest.raises(StepError, match="in progress"):
        trainer.begin_step(2)
    trainer.add(groups[1:2])
    assert trainer.finish_step()["updates/made"] == 1


def test_an_abandoned_step_leaves_no_trace(model: ModelConfig, make_batch: MakeBatch) -> None:
    trainer, untouched = (make_trainer(model, micro_batch_tokens=10) for _ in range(2))
    trainer.begin_step(4)
    trainer.add(make_batch(seed=3).groups[:3])
    assert trainer.weights.gradients()
    trainer.abandon_step()
    for each in (trainer, untouched):
        each.train(make_batch())
    assert same(weights_of(trainer), weights_of(untouched))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"prompt": ()}, "empty prompt"),
        ({"logprobs": (-1.0,)}, "1 logprobs for 2"),
        ({"is_policy": (True,)}, "1 policy flags for 2"),
        ({"loss_weight": -1.0}, "loss weight"),
    ],
)
def test_a_trajectory_that_contradicts_itself_is_refused(fields: dict[str, object], message: str) -> None:
    with pytest.raises(TrajectoryError, match=message):
        member((4, 5), **fields)


def test_a_batch_holds_a_group_once() -> None:
    group = Group(id=3, members=(member(),))
    with pytest.raises(TrajectoryError, match="group 3 is in the batch twice"):
        TrainBatch(groups=(group, group))
