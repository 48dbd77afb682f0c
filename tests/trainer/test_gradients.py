"""The gradient of a step is that of the plain loss, one trajectory at a time, however it is packed."""

from collections.abc import Callable

import pytest
import torch
from msgspec.structs import replace
from torch import Tensor

from dora_rl.algorithms.advantages import outcome_advantages
from dora_rl.core.recipe.algorithm import (
    AdvantageConfig,
    AggregationConfig,
    AlgorithmConfig,
    CorrectionConfig,
    GaeConfig,
    KlConfig,
)
from dora_rl.core.recipe.loss_configs import DecoupledPpoConfig, GspoConfig
from dora_rl.core.recipe.presets import PRESETS
from dora_rl.core.recipe.trainer_config import CriticConfig, TrainerConfig
from dora_rl.model.attention import PackedAttention
from dora_rl.model.config import Experts, ModelConfig
from dora_rl.model.decoder import Decoder
from dora_rl.model.tiny import seeded_decoder
from dora_rl.trainer.optimizer import Update
from dora_rl.trainer.train_batch import TrainBatch, TrainTrajectory
from dora_rl.trainer.trainer import Trainer
from dora_rl.trainer.trainer_factory import trainer_of

MakeBatch = Callable[..., TrainBatch]
TIGHT = {"rtol": 2e-4, "atol": 2e-7}


def captured(trainer: Trainer) -> list[dict[str, Tensor]]:
    """The gradient of every update, as it would be applied; the weights stay as they are."""
    gradients: list[dict[str, Tensor]] = []

    def capture(scale: float, is_loss_finite: bool) -> Update:
        gradients.append({name: scale * grad for name, grad in trainer.weights.gradients().items()})
        trainer.weights.forget()
        return Update(0.0, 0.0, is_skipped=False)

    trainer.optimizer.update = capture  # type: ignore[method-assign]
    return gradients


def make_trainer(model: ModelConfig, **fields: object) -> Trainer:
    settings: dict[str, object] = {"serving_dtype": "float32", "micro_batch_tokens": 64}
    config = TrainerConfig(**settings | fields)  # type: ignore[arg-type]
    return trainer_of(seeded_decoder(model, seed=0), config, max_response_tokens=20)


def gradient(model: ModelConfig, batch: TrainBatch, **fields: object) -> dict[str, Tensor]:
    trainer = make_trainer(model, **fields)
    gradients = captured(trainer)
    trainer.train(batch)
    return gradients[0]


def assert_equal(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> None:
    assert ours.keys() == theirs.keys()
    for name in ours:
        torch.testing.assert_close(
            ours[name], theirs[name], **TIGHT, msg=lambda text, name=name: f"{name}: {text}"
        )


def plain_logprobs(decoder: Decoder, member: TrainTrajectory) -> Tensor:
    """Of the policy tokens, from all logits of one sequence."""
    tokens = torch.tensor(member.prompt + member.response)
    hidden = decoder(tokens, torch.arange(len(tokens)), PackedAttention([len(tokens)]))
    logprobs = (decoder.logits(hidden) / member.temperature).log_softmax(dim=-1)
    places = torch.tensor(member.policy_positions, dtype=torch.int64)
    return logprobs[places - 1, tokens[places]]


def plain_gradient(model: ModelConfig, batch: TrainBatch, over: str) -> dict[str, Tensor]:
    """PPO with group-standardised advantages, written out trajectory by trajectory."""
    decoder = seeded_decoder(model, seed=0)
    members = [(g, member) for g, group in enumerate(batch.groups) for member in group.members]
    rewards = torch.tensor([member.reward for _, member in members])
    advantages = outcome_advantages(rewards, torch.tensor([g for g, _ in members]), AdvantageConfig())
    loss = torch.zeros(())
    trained = [i for i, (_, member) in enumerate(members) if member.num_policy_tokens]
    num_tokens = sum(members[i][1].num_policy_tokens for i in trained)
    for i in trained:
        member = members[i][1]
        ratio = (plain_logprobs(decoder, member) - torch.tensor(member.logprobs)).exp()
        terms = -torch.minimum(ratio * advantages[i], ratio.clamp(0.8, 1.2) * advantages[i])
        loss = loss + (terms.sum() / num_tokens if over == "token" else terms.mean() / len(trained))
    loss.backward()
    return {f"decoder.{name}": p.grad for name, p in decoder.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("over", ["token", "sequence"])
@pytest.mark.parametrize("micro_batch_tokens", [1, 40, 100_000])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_packing_changes_nothing(
    model: ModelConfig, make_batch: MakeBatch, over: str, micro_batch_tokens: int, temperature: float
) -> None:
    batch = make_batch(temperature=temperature)
    algorithm = AlgorithmConfig(aggregation=AggregationConfig(over=over))  # type: ignore[arg-type]
    ours = gradient(model, batch, algorithm=algorithm, micro_batch_tokens=micro_batch_tokens)
    assert_equal(ours, plain_gradient(model, batch, over))


ALGORITHMS = PRESETS | {
    "grpo with kl and entropy": AlgorithmConfig(kl=KlConfig(coefficient=0.5), entropy_bonus=0.1),
    "corrected": AlgorithmConfig(correction=CorrectionConfig(level="sequence", high=1.5)),
    "kl in the reward": AlgorithmConfig(kl=KlConfig(coefficient=0.5, estimator="k1", into="reward")),
}


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_algorithm_is_indifferent_to_packing(
    model: ModelConfig, make_batch: MakeBatch, name: str
) -> None:
    algorithm = ALGORITHMS[name]
    critic = CriticConfig() if isinstance(algorithm.advantage, GaeConfig) else None
    one_by_one, together = (
        gradient(
            model,
            make_batch(),
            algorithm=algorithm,
            critic=critic,
            micro_batch_tokens=tokens,
            kept_versions=1,
        )
        for tokens in (1, 100_000)
    )
    assert any(grad.abs().max() > 0 for grad in together.values())
    assert_equal(one_by_one, together)


@pytest.mark.parametrize("trains_trunk", [True, False])
def test_a_critic_weighs_what_it_is_told_and_reaches_the_layers_if_it_may(
    model: ModelConfig, make_batch: MakeBatch, trains_trunk: bool
) -> None:
    found = []
    for loss_weight in (0.5, 1.0):
        critic = CriticConfig(loss_weight=loss_weight, trains_trunk=trains_trunk)
        trainer = make_trainer(model, algorithm=PRESETS["ppo"], critic=critic)
        head = trainer.weights.policy.value_head
        assert head is not None
        # A head of zeros, as it is at birth, hands no gradient down.
        torch.nn.init.ones_(head.weight)
        gradients = captured(trainer)
        trainer.train(make_batch())
        found.append(gradients[0])
    half, whole = found
    torch.testing.assert_close(whole["value_head.weight"], 2 * half["value_head.weight"])
    norm = "decoder.layers.0.attention_norm.weight"
    assert torch.allclose(whole[norm], half[norm], rtol=1e-4) == (not trains_trunk)


@pytest.mark.parametrize("updates", [1, 2, 3])
def test_streaming_gives_the_gradient_of_the_whole_batch(
    model: ModelConfig, make_batch: MakeBatch, updates: int
) -> None:
    batch = make_batch(groups=7)
    whole, streamed = (make_trainer(model, updates=updates, micro_batch_tokens=30) for _ in range(2))
    expected, ours = captured(whole), captured(streamed)
    whole.train(batch)
    streamed.begin_step(7)
    for count, group in enumerate(batch.groups, start=1):
        streamed.add([group])
        # An update is made when its mini-batch is complete, not when the step is.
        assert len(ours) == sum(count >= 7 * (i + 1) // updates for i in range(updates))
    streamed.finish_step()
    assert len(ours) == updates
    for one, other in zip(ours, expected, strict=True):
        assert_equal(one, other)


def test_streaming_gives_the_same_bits_where_micro_batches_are_the_same(
    model: ModelConfig, make_batch: MakeBatch
) -> None:
    batch = make_batch(groups=5)
    # One token is exceeded by every trajectory: each is a micro-batch of its own, in the order they came.
    whole, streamed = (make_trainer(model, micro_batch_tokens=1) for _ in range(2))
    whole.train(batch)
    streamed.begin_step(5)
    for group in batch.groups:
        streamed.add([group])
    streamed.finish_step()
    for name, master in whole.weights.masters.items():
        assert torch.equal(master, streamed.weights.masters[name]), name


def test_micro_batches_run_while_the_batch_is_collected(model: ModelConfig, make_batch: MakeBatch) -> None:
    batch = make_batch(groups=6)
    trainer = make_trainer(model, micro_batch_tokens=30)
    trainer.begin_step(6)
    trainer.add(batch.groups[:5])
    assert trainer.weights.gradients()
    trainer.add(batch.groups[5:])
    assert trainer.finish_step()["num_micro_batches"] > 2


@pytest.mark.parametrize(
    ("algorithm", "updates", "reason"),
    [
        (PRESETS["reinforce++"], 1, "batch"),
        (AlgorithmConfig(loss=DecoupledPpoConfig()), 2, "proximal"),
        (AlgorithmConfig(loss=DecoupledPpoConfig()), 1, None),
        (AlgorithmConfig(loss=GspoConfig()), 2, None),
    ],
)
def test_streaming_is_refused_with_a_reason(
    model: ModelConfig, make_batch: MakeBatch, algorithm: AlgorithmConfig, updates: int, reason: str | None
) -> None:
    batch = make_batch(groups=6)
    trainer = make_trainer(model, algorithm=algorithm, updates=updates, micro_batch_tokens=20)
    gradients = captured(trainer)
    refusal = trainer.streaming_refusal
    assert refusal is None if reason is None else refusal is not None and reason in refusal
    trainer.begin_step(6)
    trainer.add(batch.groups[:5])
    has_begun = bool(gradients or trainer.weights.gradients())
    assert has_begun == (reason is None)
    trainer.add(batch.groups[5:])
    trainer.finish_step()
    assert len(gradients) == updates


def test_checkpointed_layers_give_the_same_gradient(model: ModelConfig, make_batch: MakeBatch) -> None:
    plain, again = (gradient(model, make_batch(), gradient_checkpointing=flag) for flag in (False, True))
    assert_equal(again, plain)


@pytest.mark.slow
@pytest.mark.timeout(300)
# The compiler warns about parts of torch that it uses itself.
@pytest.mark.filterwarnings("ignore")
def test_compiled_layers_give_the_same_gradient(model: ModelConfig, make_batch: MakeBatch) -> None:
    plain, compiled = (gradient(model, make_batch(), compile=flag) for flag in (False, True))
    assert_equal(compiled, plain)


def test_experts_and_an_untied_head_are_indifferent_to_packing(
    model: ModelConfig, make_batch: MakeBatch
) -> None:
    experts = Experts(num_experts=4, num_active=2, intermediate_size=24, is_normalised=True)
    sparse = replace(model, family="qwen3_moe", experts=experts, is_tied=False)
    one_by_one, together = (
        gradient(sparse, make_batch(), micro_batch_tokens=tokens) for tokens in (1, 100_000)
    )
    assert_equal(one_by_one, together)


def test_bfloat16_weights_are_rounded_masters_and_gradients_are_near(
    model: ModelConfig, make_batch: MakeBatch
) -> None:
    exact = gradient(model, make_batch())
    trainer = make_trainer(model, serving_dtype="bfloat16")
    gradients = captured(trainer)
    trainer.train(make_batch())
    for name, tensor in trainer.served_tensors().items():
        assert tensor.dtype == torch.bfloat16
        assert torch.equal(tensor, trainer.weights.masters[f"decoder.{name}"].bfloat16())
    for name, grad in gradients[0].items():
        assert grad.dtype == torch.float32
        assert (grad - exact[name]).norm() < 0.1 * exact[name].norm() + 1e-6
