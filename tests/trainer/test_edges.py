"""The odd trajectories and groups that a run meets, each with a name."""

import math
from collections.abc import Callable

import pytest
from msgspec.structs import replace

from dora_rl.algorithms.aggregation import BatchCounts
from dora_rl.core.errors import ConfigError
from dora_rl.core.recipe.algorithm import AggregationConfig, AlgorithmConfig, KlConfig, OverlongConfig
from dora_rl.core.recipe.presets import PRESETS
from dora_rl.core.recipe.trainer_config import CriticConfig
from dora_rl.model.config import ModelConfig
from dora_rl.trainer.examples import batch_scale
from dora_rl.trainer.step import StepError
from dora_rl.trainer.train_batch import TrainBatch, TrainGroup, TrajectoryError

from .odd import batch_of, make_trainer, member, same, weights_of

MakeBatch = Callable[..., TrainBatch]


def test_a_nan_reward_is_masked_and_its_group_goes_on(model: ModelConfig) -> None:
    good = (member((4, 5), 0.0), member((6,), 1.0))
    with_nan, without = make_trainer(model), make_trainer(model)
    metrics = with_nan.train(batch_of((*good, member((9, 9), math.nan))))
    without.train(batch_of(good))
    assert metrics["masked/nan_reward"] == 1
    assert metrics["reward"] == 0.5
    assert same(weights_of(with_nan), weights_of(without))


@pytest.mark.parametrize("reward", [math.inf, -math.inf, 1e39])
def test_a_reward_that_float32_cannot_hold_is_masked_too(model: ModelConfig, reward: float) -> None:
    good = (member((4, 5), 0.0), member((6,), 1.0))
    with_it, without = make_trainer(model), make_trainer(model)
    metrics = with_it.train(batch_of((*good, member((9, 9), reward))))
    without.train(batch_of(good))
    assert metrics["masked/nan_reward"] == 1
    assert metrics["reward"] == 0.5
    assert same(weights_of(with_it), weights_of(without))


@pytest.mark.parametrize("reward", [1e30, -1e13])
@pytest.mark.parametrize("preset", ["rloo", "grpo"])
def test_an_absurd_reward_costs_its_own_trajectory_and_no_other(
    model: ModelConfig, preset: str, reward: float
) -> None:
    good = (member((4, 5), 0.0), member((6,), 1.0))
    with_it, without = (make_trainer(model, algorithm=PRESETS[preset]) for _ in range(2))
    metrics = with_it.train(batch_of((*good, member((9, 9), reward))))
    without.train(batch_of(good))
    assert metrics["masked/absurd_reward"] == 1
    assert metrics["updates/skipped"] == 0
    assert metrics["reward"] == 0.5
    assert same(weights_of(with_it), weights_of(without))


@pytest.mark.parametrize("preset", ["grpo", "bnpo", "rloo"])
def test_a_mini_batch_without_anything_to_train_on_makes_no_update(model: ModelConfig, preset: str) -> None:
    trainer = make_trainer(model, algorithm=PRESETS[preset], updates=2)
    sound, empty = (member(reward=1.0), member((7,))), (member((), 0.0), member((), 1.0))
    trainer.train(batch_of(sound, sound))
    assert trainer.optimizer.num_updates == 2
    metrics = trainer.train(batch_of(sound, empty))
    assert (metrics["updates/made"], metrics["updates/empty"], metrics["updates/skipped"]) == (1, 1, 0)
    assert math.isfinite(metrics["loss"])
    assert math.isfinite(metrics["grad_norm"])
    assert trainer.optimizer.num_updates == 3
    before = weights_of(trainer)
    metrics = trainer.train(batch_of(empty, empty))
    assert (metrics["updates/made"], metrics["updates/empty"], metrics["updates/skipped"]) == (0, 2, 0)
    # Moments of the updates before would have moved them.
    assert same(weights_of(trainer), before)
    assert trainer.optimizer.num_updates == 3


@pytest.mark.parametrize("over", ["token", "sequence"])
def test_no_token_is_divided_by_nothing(over: str) -> None:
    config = AggregationConfig(over=over)  # type: ignore[arg-type]
    assert math.isfinite(batch_scale(config, BatchCounts(num_tokens=0, num_trajectories=0)))


def test_the_loss_of_a_step_is_that_of_the_updates_that_were_made(model: ModelConfig) -> None:
    trainer = make_trainer(model, updates=2)
    broken = (member((8, 8), 1.0, loss_weight=1e300), member())
    metrics = trainer.train(batch_of(broken, (member(reward=1.0), member((7,)))))
    assert (metrics["updates/made"], metrics["updates/skipped"]) == (1, 1)
    assert math.isfinite(metrics["loss"])


def test_a_constant_length_left_out_is_the_cap_of_the_run(model: ModelConfig) -> None:
    left_out = PRESETS["dr_grpo"]
    assert left_out.aggregation.length is None
    said = replace(left_out, aggregation=AggregationConfig(over="constant", length=17))
    batch = batch_of((member((4, 5), 0.0), member((6,), 1.0)))
    one, other = make_trainer(model, cap=17, algorithm=left_out), make_trainer(model, algorithm=said)
    assert one.train(batch)["loss"] == other.train(batch)["loss"]
    assert same(weights_of(one), weights_of(other))
    with pytest.raises(ConfigError, match="length cap"):
        make_trainer(model, algorithm=left_out)


def test_a_value_clip_holds_the_critic_back(model: ModelConfig) -> None:
    # The second update of a step sees values that the first has moved; a tiny clip stops it.
    free, clipped, tight = (
        make_trainer(model, algorithm=PRESETS["ppo"], updates=2, critic=CriticConfig(value_clip=clip))
        for clip in (None, 1e6, 1e-6)
    )
    batch = batch_of((member((4, 5), 0.0), member((6,), 5.0)), (member((4, 5), 0.0), member((6,), 5.0)))
    for trainer in (free, clipped, tight):
        trainer.train(batch)
    assert same(weights_of(free), weights_of(clipped))
    assert not same(weights_of(free), weights_of(tight))


@pytest.mark.parametrize("into", ["loss", "reward"])
def test_a_logprob_that_is_no_number_masks_its_trajectory_alone(model: ModelConfig, into: str) -> None:
    algorithm = AlgorithmConfig(kl=KlConfig(into=into))  # type: ignore[arg-type]
    good = (member((4, 5), 0.0), member((6,), 1.0))
    with_it, without = (make_trainer(model, algorithm=algorithm) for _ in range(2))
    metrics = with_it.train(batch_of((*good, member((9, 9), 0.5, logprobs=(math.nan, -1.0)))))
    without.train(batch_of(good))
    assert metrics["masked/nan_logprob"] == 1
    assert metrics["updates/made"] == 1
    assert same(weights_of(with_it), weights_of(without))


def test_masked_tokens_have_no_say_in_normalised_advantages(model: ModelConfig) -> None:
    settings = {"algorithm": PRESETS["ppo"], "critic": CriticConfig()}
    good = (member((4, 5), 0.0), member((6,), 1.0))
    with_it, without = (make_trainer(model, **settings) for _ in range(2))
    with_it.train(batch_of((*good, member((9, 9), 50.0, loss_weight=0.0))))
    without.train(batch_of(good))
    assert same(weights_of(with_it), weights_of(without))


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
    trainer = make_trainer(model, cap=64, algorithm=PRESETS[preset])
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


@pytest.mark.parametrize("preset", ["grpo", "reinforce++", "ppo"])
@pytest.mark.parametrize("reward", [1.0, math.nan])
def test_a_batch_without_anything_to_train_on_is_a_step_all_the_same(
    model: ModelConfig, preset: str, reward: float
) -> None:
    trainer = make_trainer(model, algorithm=PRESETS[preset], critic=CriticConfig())
    before = weights_of(trainer)
    metrics = trainer.train(batch_of((member((), reward), member(reward=math.nan))))
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
    # Finite, and infinite as a float32.
    broken = member((8, 8), 1.0, loss_weight=1e300)
    metrics = trainer.train(batch_of((broken, member())))
    assert metrics["updates/skipped"] == 1
    assert math.isnan(metrics["grad_norm"])
    assert same(weights_of(trainer), before)
    assert trainer.train(batch_of((member(reward=1.0), member((7,)))))["updates/skipped"] == 0
    assert not same(weights_of(trainer), before)


def test_an_overlong_penalty_needs_the_cap(model: ModelConfig) -> None:
    with pytest.raises(ConfigError, match="length cap"):
        make_trainer(model, algorithm=PRESETS["dapo"])


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
        trainer.add(groups[1:])
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
    group = TrainGroup(id=3, members=(member(),))
    with pytest.raises(TrajectoryError, match="group 3 is in the batch twice"):
        TrainBatch(groups=(group, group))
