"""Low-rank training: exact factor gradients, merged versions, and files that peft opens."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.func import functional_call

from dora_rl.core.recipe.trainer_config import LoraConfig, OptimizerConfig, TrainerConfig
from dora_rl.model.attention import PackedAttention
from dora_rl.model.config import ModelConfig
from dora_rl.model.decoder import Decoder
from dora_rl.model.packed_sequences import pack
from dora_rl.model.parameter_layout import pieces
from dora_rl.model.save import save_decoder
from dora_rl.model.tiny import seeded_decoder
from dora_rl.trainer.export import export
from dora_rl.trainer.lora import LoraWeights
from dora_rl.trainer.policy import Policy
from dora_rl.trainer.train_batch import TrainBatch
from dora_rl.trainer.trainer import Trainer
from dora_rl.trainer.trainer_factory import trainer_of

from .adapters import save_adapter

MakeBatch = Callable[..., TrainBatch]
LORA = LoraConfig(rank=4, alpha=8.0, targets=("q_proj", "v_proj", "up_proj", "down_proj"))


def make_trainer(model: ModelConfig, **fields: object) -> Trainer:
    settings: dict[str, object] = {
        "lora": LORA,
        "serving_dtype": "float32",
        "optimizer": OptimizerConfig(learning_rate=1e-2),
    }
    return trainer_of(seeded_decoder(model, seed=0), TrainerConfig(**settings | fields))  # type: ignore[arg-type]


def lora_weights(trainer: Trainer) -> LoraWeights:
    assert isinstance(trainer.weights, LoraWeights)
    return trainer.weights


def test_a_fresh_adapter_changes_nothing(model: ModelConfig) -> None:
    trainer = make_trainer(model)
    for name, own in seeded_decoder(model, seed=0).named_parameters():
        assert torch.equal(trainer.served_tensors()[name], own)


def test_only_the_targets_move(model: ModelConfig, make_batch: MakeBatch) -> None:
    trainer = make_trainer(model)
    trainer.train(make_batch())
    trainer.train(make_batch(seed=1))
    base = dict(seeded_decoder(model, seed=0).named_parameters())
    for piece in pieces(model):
        moved = not torch.equal(
            piece.of(trainer.served_tensors()[piece.parameter]), piece.of(base[piece.parameter])
        )
        assert moved == any(target in piece.name for target in LORA.targets), piece.name


def test_factor_gradients_are_those_of_the_product(model: ModelConfig) -> None:
    weights = LoraWeights(Policy(seeded_decoder(model, seed=0)), torch.float32, LORA, seed=3)
    generator = torch.Generator().manual_seed(0)
    for each in weights.factors:
        torch.nn.init.normal_(each.b_OR, std=0.1, generator=generator)
    weights.refresh()
    packed = pack([[5, 9, 2, 7, 1], [3, 3]])

    def loss(decoder: Decoder, parameters: dict[str, Tensor]) -> Tensor:
        inputs = packed.tokens_T, packed.positions_T, PackedAttention(packed.lengths)
        hidden = functional_call(decoder, parameters, inputs)
        return decoder.logprobs(hidden, packed.tokens_T.roll(-1)).logprobs_T.sum()

    decoder = weights.policy.decoder
    loss(decoder, dict(decoder.named_parameters())).backward()
    plain = seeded_decoder(model, seed=0)
    leaves = {name: own.clone().requires_grad_() for name, own in weights.masters.items()}
    merged = {name: own.detach().clone() for name, own in plain.named_parameters()}
    for each in weights.factors:
        a_RI, b_OR = (leaves[name] for name in each.names)
        each.piece.of(merged[each.piece.parameter]).add_(LORA.scale * b_OR @ a_RI)
    loss(plain, merged).backward()
    for name, ours in weights.gradients().items():
        torch.testing.assert_close(ours, leaves[name].grad, rtol=1e-4, atol=1e-5)


# peft and what it imports warn about each other's versions.
@pytest.mark.filterwarnings("ignore")
def test_peft_opens_the_adapter_and_merges_it_to_the_exported_model(
    model: ModelConfig, make_batch: MakeBatch, tmp_path: Path
) -> None:
    peft = pytest.importorskip("peft")
    from transformers import AutoModelForCausalLM

    save_decoder(seeded_decoder(model, seed=0), tmp_path / "base")
    trainer = make_trainer(model)
    trainer.train(make_batch())
    trainer.train(make_batch(seed=1))
    save_adapter(lora_weights(trainer), tmp_path / "adapter", base=str(tmp_path / "base"))
    export(trainer, tmp_path / "merged")
    base, ours = (
        AutoModelForCausalLM.from_pretrained(tmp_path / name, dtype=torch.float32)
        for name in ("base", "merged")
    )
    before = {name: own.clone() for name, own in base.named_parameters()}
    theirs = peft.PeftModel.from_pretrained(base, tmp_path / "adapter").merge_and_unload()
    for (name, own), (_, other) in zip(ours.named_parameters(), theirs.named_parameters(), strict=True):
        torch.testing.assert_close(own, other, rtol=1e-5, atol=1e-7, msg=name)
        assert torch.equal(own, before[name]) == all(target not in name for target in LORA.targets), name
