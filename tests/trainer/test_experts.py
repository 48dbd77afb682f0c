"""A mixture of experts in the trainer: its load is balanced, and it takes the experts the engine took."""

from array import array
from collections.abc import Callable

import pytest
import torch
from msgspec.structs import replace
from torch import Tensor
from transformers.models.qwen3_moe.modeling_qwen3_moe import load_balancing_loss_func

from dora_rl.core.errors import ConfigError, DoraError
from dora_rl.core.recipe.trainer_config import OptimizerConfig, TrainerConfig
from dora_rl.engines.config import EngineConfig, Limits
from dora_rl.engines.native.native_engine import NativeEngine
from dora_rl.engines.native.scheduling.stops import Stops
from dora_rl.engines.requests import Finished, Request, Stopping, StreamKey
from dora_rl.model.attention import PackedAttention
from dora_rl.model.config import Experts, ModelConfig
from dora_rl.model.decoder import Decoder
from dora_rl.model.packed_sequences import pack
from dora_rl.model.router_notes import RouterNotes
from dora_rl.model.tiny import seeded_decoder
from dora_rl.trainer.replay import replayed
from dora_rl.trainer.tensors import Sequences, sequences_of
from dora_rl.trainer.train_batch import TrainBatch, TrainGroup, TrainTrajectory
from dora_rl.trainer.trainer import Trainer
from dora_rl.trainer.trainer_factory import trainer_of

MakeBatch = Callable[..., TrainBatch]
EXPERTS = Experts(num_experts=6, num_active=2, intermediate_size=24, is_normalised=True)


@pytest.fixture
def moe(model: ModelConfig) -> ModelConfig:
    return replace(model, family="qwen3_moe", experts=EXPERTS)


def lopsided(moe: ModelConfig) -> Decoder:
    """A decoder whose routers prefer a few experts."""
    decoder = seeded_decoder(moe, seed=0)
    # Hidden states have a direction in common, and two experts of each layer like it.
    decoder.embed.weight.data.add_(0.1)
    for block in decoder.layers:
        block.mlp.router.weight.data[:2].add_(0.03)
    return decoder


def trainer(moe: ModelConfig, **fields: object) -> Trainer:
    settings: dict[str, object] = {
        "serving_dtype": "float32",
        "optimizer": OptimizerConfig(learning_rate=1e-3),
    }
    return trainer_of(lopsided(moe), TrainerConfig(**settings | fields))  # type: ignore[arg-type]


def routed(decoder: Decoder) -> RouterNotes:
    packed, routing = pack([[5, 9, 2, 7, 1, 30, 31, 44], [3, 3, 17]]), RouterNotes()
    decoder(packed.tokens_T, packed.positions_T, PackedAttention(packed.lengths), routing)
    return routing


def test_imbalance_of_a_layer_is_that_of_transformers(moe: ModelConfig) -> None:
    routing = routed(lopsided(moe))
    scores = list(routing.scores.values())
    theirs = [load_balancing_loss_func((own,), num_experts=6, top_k=2) for own in scores]
    assert len(scores) == moe.num_layers
    torch.testing.assert_close(routing.imbalance(), torch.stack(theirs).mean())


def test_experts_used_alike_are_as_even_as_can_be() -> None:
    routing = RouterNotes()
    chosen = torch.tensor([[0, 1], [2, 3], [4, 5]])
    routing.note(0, torch.zeros(3, 6), chosen)
    assert routing.imbalance() == pytest.approx(2.0)


def test_the_load_is_balanced_where_that_is_asked_for(moe: ModelConfig, make_batch: MakeBatch) -> None:
    found = {}
    for coefficient in (None, 10.0):
        own = trainer(moe, load_balance=coefficient)
        found[coefficient] = [own.train(make_batch(seed=i))["router/imbalance"] for i in range(8)]
    before, after = found[10.0][0], found[10.0][-1]
    assert found[None][0] == pytest.approx(before)
    assert before > 3.5
    assert after < 0.7 * before
    assert found[None][-1] > 0.9 * before


def gradients(moe: ModelConfig, make_batch: MakeBatch, **fields: object) -> dict[str, Tensor]:
    own = trainer(moe, optimizer=OptimizerConfig(learning_rate=1e-6, max_grad_norm=None), **fields)
    batch = make_batch()
    own.begin_step(len(batch.groups) + 1)
    own.add(batch.groups)
    own._run(own._pending)
    return {name: grad.clone() for name, grad in own.weights.gradients().items()}


def test_the_gradient_does_not_depend_on_how_layers_are_remembered_or_packed(
    moe: ModelConfig, make_batch: MakeBatch
) -> None:
    kept = gradients(moe, make_batch, load_balance=0.5)
    plain = gradients(moe, make_batch)
    again = gradients(moe, make_batch, load_balance=0.5, gradient_checkpointing=True)
    for name, own in kept.items():
        torch.testing.assert_close(again[name], own, rtol=1e-5, atol=1e-6)
    routers = [name for name in kept if name.endswith("router.weight")]
    assert routers
    assert all(not torch.allclose(kept[name], plain[name]) for name in routers)


def test_the_coefficient_may_be_the_models(moe: ModelConfig, make_batch: MakeBatch) -> None:
    published = replace(moe, experts=replace(EXPERTS, balance_coefficient=0.25))
    ours, same = (
        gradients(published, make_batch, load_balance=coefficient) for coefficient in ("model", 0.25)
    )
    assert all(torch.equal(ours[name], same[name]) for name in same)


def test_a_model_without_experts_has_no_load_to_balance(model: ModelConfig) -> None:
    with pytest.raises(ConfigError, match=r"trainer\.load_balance is for a mixture of experts"):
        trainer_of(seeded_decoder(model, seed=0), TrainerConfig(load_balance="model"))


def generated(model: ModelConfig, decoder: Decoder) -> list[TrainTrajectory]:
    """Trajectories of an engine that records experts."""
    limits = Limits(num_blocks=80, block_size=8, max_running=8, step_tokens=64, max_positions=64)
    config = EngineConfig(limits=limits, dtype=model.dtype, max_versions=1, records_experts=True)
    engine = NativeEngine(model, config, Stops([]))
    engine.load_version(0, dict(decoder.state_dict()))
    asked = {}
    for number in range(8):
        prompt = tuple((5 * place + number) % 61 for place in range(3 + number))
        asked[number] = Request(
            id=number,
            version=0,
            prompt=prompt,
            key=StreamKey(seed=0, row=number),
            stopping=Stopping(max_new_tokens=40),
        )
        engine.submit(asked[number])
    return [
        TrainTrajectory(
            prompt=asked[event.id].prompt,
            response=event.tokens,
            logprobs=event.logprobs,
            experts=event.experts,
            version=0,
            reward=float(event.id % 2),
        )
        for event in engine.run()
        if isinstance(event, Finished)
    ]


@torch.no_grad()
def shaken(decoder: Decoder) -> Decoder:
    """Routers a little other than they were."""
    generator = torch.Generator().manual_seed(1)
    for block in decoder.layers:
        own = block.mlp.router.weight
        own += 0.02 * torch.randn(own.shape, generator=generator).to(own.dtype)
    return decoder


@torch.no_grad()
def loud(moe: ModelConfig) -> Decoder:
    """A decoder whose experts have much to say, and whose routers prefer none."""
    decoder = seeded_decoder(moe, seed=0)
    for block in decoder.layers:
        block.mlp.gate_up *= 8
        block.mlp.down *= 8
    return decoder


def codes(routing: RouterNotes, sequences: Sequences) -> list[bytes]:
    chosen_TW = torch.cat(list(routing.chosen.values()), dim=1)
    return [array("B", row).tobytes() for row in chosen_TW[sequences.predicted_at_P].tolist()]


@torch.no_grad()
def test_replayed_experts_are_those_that_the_engine_took(moe: ModelConfig) -> None:
    rounded = replace(moe, dtype="bfloat16")
    decoder = lopsided(moe).bfloat16()
    trajectories = generated(rounded, decoder)
    shaken(decoder)
    sequences = sequences_of(trajectories)
    packed = sequences.packed
    found = {}
    for is_replayed in (False, True):
        routing = RouterNotes(replayed(rounded, sequences) if is_replayed else None)
        decoder(packed.tokens_T, packed.positions_T, PackedAttention(packed.lengths), routing)
        found[is_replayed] = codes(routing, sequences)
    assert found[True] == list(sequences.experts)
    assert sum(own != its for own, its in zip(found[False], sequences.experts, strict=True)) > 20
    # Tokens that nothing was recorded of keep the trainer's own choice.
    partly = replace(trajectories[0], experts=(b"",) * len(trajectories[0].experts))
    given = replayed(rounded, sequences_of([partly, trajectories[1]]))
    assert (given[0][: partly.num_tokens] == -1).all()
    assert (given[0] >= 0).any()


def test_a_step_reports_how_much_was_replayed_and_the_gap_shrinks(moe: ModelConfig) -> None:
    trajectories = generated(moe, loud(moe))
    trajectories[0] = replace(trajectories[0], experts=())
    groups = tuple(TrainGroup(id=i, members=tuple(trajectories[i : i + 2])) for i in range(0, 8, 2))
    found = {}
    for is_replayed in (False, True):
        # Experts that are nearly alike to the engine's routers are the other way round to these.
        decoder = shaken(loud(moe))
        own = trainer_of(decoder, TrainerConfig(serving_dtype="float32", router_replay=is_replayed))
        found[is_replayed] = own.train(TrainBatch(groups=groups))
    assert found[False]["router/replayed"] == 0.0
    assert found[True]["router/replayed"] == pytest.approx(7 / 8)
    assert found[True]["logprob_gap/mean"] < 0.7 * found[False]["logprob_gap/mean"]


def test_experts_of_another_model_are_refused(moe: ModelConfig) -> None:
    other = TrainTrajectory(
        prompt=(1,), response=(2,), logprobs=(-1.0,), experts=(b"123",), version=0, reward=0.0
    )
    with pytest.raises(DoraError, match="experts recorded of tokens are not 4 numbers"):
        replayed(moe, sequences_of([other]))
