"""A loss and an advantage of the user's own: the built-in's weights, bit for bit, or a sentence."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from dora_rl.algorithms.custom import load_advantage, load_loss
from dora_rl.algorithms.tokens import LossTokens
from dora_rl.core.errors import UserError
from dora_rl.core.recipe.algorithm import AlgorithmConfig, CorrectionConfig, CustomAdvantageConfig
from dora_rl.core.recipe.loss_configs import AnyLossConfig, CustomLossConfig, DecoupledPpoConfig
from dora_rl.core.recipe.presets import preset
from dora_rl.core.recipe.trainer_config import OptimizerConfig, TrainerConfig
from dora_rl.model.config import ModelConfig
from dora_rl.model.tiny import seeded_decoder
from dora_rl.trainer.trainer import Trainer
from dora_rl.trainer.trainer_factory import trainer_of

from .conftest import MakeBatch

FILE = Path(__file__).parent / "user_algorithms.py"


def own_loss(name: str, **options: Any) -> CustomLossConfig:
    return CustomLossConfig(function=f"{FILE}:{name}", options=options)


def own_advantage(name: str, **options: Any) -> CustomAdvantageConfig:
    return CustomAdvantageConfig(function=f"{FILE}:{name}", options=options)


def trainer(model: ModelConfig, algorithm: AlgorithmConfig, **fields: Any) -> Trainer:
    made = {"updates": 2, "micro_batch_tokens": 40, "serving_dtype": "float32"} | fields
    config = TrainerConfig(algorithm=algorithm, optimizer=OptimizerConfig(learning_rate=1e-2), **made)
    return trainer_of(seeded_decoder(model, seed=0), config)


def trained(model: ModelConfig, make_batch: MakeBatch, algorithm: AlgorithmConfig, **fields: Any) -> Trainer:
    own = trainer(model, algorithm, **fields)
    for seed in range(3):
        own.train(make_batch(seed=seed, version=seed))
    return own


def assert_same_weights(one: Trainer, other: Trainer) -> None:
    for name, tensor in one.served_tensors().items():
        assert torch.equal(tensor, other.served_tensors()[name]), name


GRPO = preset("grpo")


@pytest.mark.parametrize("updates", [1, 2])
def test_a_copy_of_grpos_loss_and_advantage_gives_the_same_weights_bit_for_bit(
    model: ModelConfig, make_batch: MakeBatch, updates: int
) -> None:
    copied = msgspec.structs.replace(GRPO, loss=own_loss("grpo"), advantage=own_advantage("centred"))
    built_in, own = (trained(model, make_batch, each, updates=updates) for each in (GRPO, copied))
    fresh = trainer(model, GRPO)
    assert_same_weights(built_in, own)
    assert not torch.equal(own.served_tensors()["norm.weight"], fresh.served_tensors()["norm.weight"])


def test_a_copy_reports_what_the_built_in_does_and_its_own_metrics(
    model: ModelConfig, make_batch: MakeBatch
) -> None:
    copied = msgspec.structs.replace(GRPO, loss=own_loss("grpo"))
    one, other = (trainer(model, each).train(make_batch()) for each in (GRPO, copied))
    assert other.pop("loss/squared") >= other["ratio_mean"] ** 2
    assert {**one, "step_time": 0.0} == {**other, "step_time": 0.0}


def test_a_loss_that_names_the_proximal_policy_gets_it(model: ModelConfig, make_batch: MakeBatch) -> None:
    built_in = AlgorithmConfig(loss=DecoupledPpoConfig())
    copied = AlgorithmConfig(loss=own_loss("decoupled"))
    one, other = (trained(model, make_batch, each) for each in (built_in, copied))
    assert_same_weights(one, other)
    assert other.streaming_refusal is not None
    assert "proximal" in other.streaming_refusal


def test_options_reach_the_loss_and_a_correction_goes_with_it(
    model: ModelConfig, make_batch: MakeBatch
) -> None:
    loss = msgspec.structs.replace(GRPO.loss, clip_high=0.05)  # type: ignore[type-var]
    built_in = msgspec.structs.replace(GRPO, loss=loss, correction=CorrectionConfig())
    copied = msgspec.structs.replace(built_in, loss=own_loss("grpo", clip_high=0.05))
    assert_same_weights(*(trained(model, make_batch, each, kept_versions=4) for each in (built_in, copied)))


def test_groups_may_come_one_by_one(model: ModelConfig, make_batch: MakeBatch) -> None:
    copied = msgspec.structs.replace(GRPO, loss=own_loss("grpo"), advantage=own_advantage("centred"))
    streamed, batch = trainer(model, copied), make_batch()
    assert streamed.streaming_refusal is None
    streamed.begin_step(len(batch.groups))
    for group in batch.groups:
        streamed.add([group])
    streamed.finish_step()
    built_in = trainer(model, GRPO)
    built_in.begin_step(len(batch.groups))
    for group in batch.groups:
        built_in.add([group])
    built_in.finish_step()
    assert_same_weights(streamed, built_in)


def test_an_advantage_that_names_the_batchs_rewards_waits_for_the_batch(
    model: ModelConfig, make_batch: MakeBatch
) -> None:
    copied = msgspec.structs.replace(GRPO, advantage=own_advantage("against_batch"))
    whole, batch = trainer(model, copied), make_batch()
    assert whole.streaming_refusal is not None
    assert "names 'batch_rewards'" in whole.streaming_refusal
    whole.train(batch)
    one_by_one = trainer(model, copied)
    one_by_one.begin_step(len(batch.groups))
    for group in batch.groups:
        one_by_one.add([group])
    one_by_one.finish_step()
    assert_same_weights(whole, one_by_one)


def test_an_advantage_sees_one_group_at_a_time_in_its_order() -> None:
    advantage = load_advantage(own_advantage("by_length"))
    rewards_N, group_N = torch.tensor([6.0, 8.0, 9.0]).double(), torch.tensor([1, 0, 1])
    assert advantage(rewards_N, group_N, torch.tensor([2, 4, 3])).tolist() == [3.0, 2.0, 3.0]


def test_a_loss_may_take_everything_there_is() -> None:
    loss = load_loss(own_loss("takes_everything"))
    assert not loss.needs_proximal
    assert loss.metrics == ()


def test_no_tokens_are_no_reason_to_call_it() -> None:
    none = torch.zeros(0)
    tokens = LossTokens(
        logprobs_T=none,
        behaviour_logprobs_T=none,
        advantages_T=none,
        trajectory_T=torch.zeros(0, dtype=torch.int64),
        num_trajectories=1,
    )
    assert load_loss(own_loss("grpo")).function(tokens).loss_T.shape == (0,)


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("mean", "user_algorithms.py:mean' returned a single number for 7 tokens"),
        ("number", "user_algorithms.py:number' returned a float for 7 tokens"),
        ("infinite", "user_algorithms.py:infinite' returned -inf for tokens of ordinary logprobs"),
        ("detached", "does not depend on 'logprobs'"),
        ("raises", "user_algorithms.py:raises' failed: RuntimeError: shape"),
        ("needs_more", "cannot be called without 'beta'"),
        ("by_position", "takes 'logprobs' by position only"),
        ("NOT_A_FUNCTION", "is not a function"),
        ("grpoo", "has no 'grpoo'"),
    ],
)
def test_a_loss_that_cannot_work_is_a_sentence_before_the_run(name: str, sentence: str) -> None:
    with pytest.raises(UserError) as raised:
        load_loss(own_loss(name))
    assert sentence in raised.value.message


def test_where_the_users_line_is_is_told() -> None:
    with pytest.raises(UserError) as raised:
        load_loss(own_loss("raises"))
    assert raised.value.hint is not None
    line = int(raised.value.hint.rpartition(" ")[2])
    assert FILE.read_text().splitlines()[line - 1].strip() == "return logprobs.reshape(3, 3)"


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("divides_by_nothing", "divides_by_nothing' returned nan for the rewards [1.0, 1.0]"),
        ("of_group", "of_group' returned a single number for a group of 4"),
        ("words", "words' returned a str"),
    ],
)
def test_an_advantage_that_cannot_work_is_a_sentence_before_the_run(name: str, sentence: str) -> None:
    with pytest.raises(UserError) as raised:
        load_advantage(own_advantage(name))
    assert sentence in raised.value.message


def test_an_unknown_option_is_answered_with_the_nearest() -> None:
    with pytest.raises(UserError, match="has no option 'clip_hgh'") as raised:
        load_loss(own_loss("grpo", clip_hgh=0.1))
    assert raised.value.hint == "did you mean 'clip_high'?"


@pytest.mark.parametrize(
    ("loss", "sentence"),
    [
        (own_loss("late"), "user_algorithms.py:late' returned what is not finite in step 0"),
        (own_loss("changing"), r"returned the metrics \[\], and \['seven'\] at first"),
    ],
)
def test_what_goes_wrong_in_a_step_names_the_function(
    model: ModelConfig, make_batch: MakeBatch, loss: AnyLossConfig, sentence: str
) -> None:
    with pytest.raises(UserError, match=sentence):
        trainer(model, msgspec.structs.replace(GRPO, loss=loss)).train(make_batch(groups=8))


def test_a_loss_of_the_users_own_is_the_same_on_each_way_of_cutting_tokens() -> None:
    loss = load_loss(own_loss("grpo"))
    logprobs_T = torch.linspace(-3, -1, 6, requires_grad=True)
    tokens = LossTokens(
        logprobs_T=logprobs_T,
        behaviour_logprobs_T=torch.full((6,), -2.0),
        advantages_T=torch.tensor([1.0, 1.0, 1.0, -1.0, -1.0, -1.0]),
        trajectory_T=torch.tensor([0, 0, 0, 1, 1, 1]),
        num_trajectories=2,
    )
    first, second = (
        replace(
            tokens,
            logprobs_T=tokens.logprobs_T[rows],
            behaviour_logprobs_T=tokens.behaviour_logprobs_T[rows],
            advantages_T=tokens.advantages_T[rows],
            trajectory_T=torch.zeros(3, dtype=torch.int64),
            num_trajectories=1,
        )
        for rows in (slice(0, 3), slice(3, 6))
    )
    apart = torch.cat([loss.function(first).loss_T, loss.function(second).loss_T])
    assert torch.equal(loss.function(tokens).loss_T, apart)
