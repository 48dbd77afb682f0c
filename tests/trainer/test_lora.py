"""Low-rank training: exact factor gradients, merged versions, and files that peft opens."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from msgspec.structs import replace
from torch import Tensor
from torch.func import functional_call

from dora_rl.core.errors import ConfigError, ModelError
from dora_rl.core.recipe.algorithm import AlgorithmConfig, KlConfig
from dora_rl.core.recipe.trainer_config import LoraConfig, OptimizerConfig, TrainerConfig
from dora_rl.model.attention import PackedAttention
from dora_rl.model.config import ModelConfig
from dora_rl.model.decoder import Decoder
from dora_rl.model.load import load_decoder
from dora_rl.model.packed_sequences import pack
from dora_rl.model.parameter_layout import pieces
from dora_rl.model.save import save_decoder
from dora_rl.model.tiny import seeded_decoder
from dora_rl.trainer.adapter import read_adapter_config, with_adapter
from dora_rl.trainer.export import export
from dora_rl.trainer.lora import LoraWeights
from dora_rl.trainer.policy import Policy
from dora_rl.trainer.train_batch import TrainBatch
from dora_rl.trainer.trainer import Trainer
from dora_rl.trainer.trainer_factory import trainer_of

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


def trained(model: ModelConfig, make_batch: MakeBatch, **fields: object) -> Trainer:
    trainer = make_trainer(model, **fields)
    trainer.train(make_batch())
    trainer.train(make_batch(seed=1))
    return trainer


def write(trainer: Trainer, directory: Path, base: Path) -> None:
    """Write a checkpoint as a run does."""
    checkpoint = trainer.take_checkpoint()
    assert checkpoint is not None
    checkpoint.write(directory, state="trainer", origin=base)


@pytest.fixture
def base(model: ModelConfig, tmp_path: Path) -> Path:
    save_decoder(seeded_decoder(model, seed=0), tmp_path / "base")
    return tmp_path / "base"


@pytest.mark.filterwarnings("ignore")
def test_fused_matrices_have_factors_that_peft_opens(
    model: ModelConfig, make_batch: MakeBatch, tmp_path: Path
) -> None:
    peft = pytest.importorskip("peft")
    from transformers import AutoModelForCausalLM

    phi3 = replace(model, family="phi3")
    save_decoder(seeded_decoder(phi3, seed=0), tmp_path / "base")
    trainer = trained(phi3, make_batch, lora=LoraConfig(rank=4))
    write(trainer, tmp_path / "step_00002", tmp_path / "base")
    _, adapter = read_adapter_config(tmp_path / "step_00002")
    assert set(adapter.targets) == {"qkv_proj", "o_proj", "gate_up_proj", "down_proj"}
    export(trainer, tmp_path / "merged")
    plain, ours = (
        AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
        for path in (tmp_path / "base", tmp_path / "merged")
    )
    theirs = peft.PeftModel.from_pretrained(plain, tmp_path / "step_00002").merge_and_unload()
    for (name, own), (_, other) in zip(ours.named_parameters(), theirs.named_parameters(), strict=True):
        torch.testing.assert_close(own, other, rtol=1e-5, atol=1e-7, msg=name)


# peft and what it imports warn about each other's versions.
@pytest.mark.filterwarnings("ignore")
def test_peft_opens_a_checkpoint_and_merges_it_to_the_exported_model(
    model: ModelConfig, make_batch: MakeBatch, base: Path, tmp_path: Path
) -> None:
    peft = pytest.importorskip("peft")
    from transformers import AutoModelForCausalLM

    trainer = trained(model, make_batch)
    write(trainer, tmp_path / "step_00002", base)
    assert not (tmp_path / "step_00002/merged").exists()
    assert not (tmp_path / "step_00002/model.safetensors").exists()
    export(trainer, tmp_path / "merged")
    plain, ours = (
        AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
        for path in (base, tmp_path / "merged")
    )
    before = {name: own.clone() for name, own in plain.named_parameters()}
    theirs = peft.PeftModel.from_pretrained(plain, tmp_path / "step_00002").merge_and_unload()
    for (name, own), (_, other) in zip(ours.named_parameters(), theirs.named_parameters(), strict=True):
        torch.testing.assert_close(own, other, rtol=1e-5, atol=1e-7, msg=name)
        assert torch.equal(own, before[name]) == all(target not in name for target in LORA.targets), name
    # It names its model: transformers finds both by the adapter alone.
    whole = AutoModelForCausalLM.from_pretrained(tmp_path / "step_00002", dtype=torch.float32)
    assert any("lora_A" in name for name, _ in whole.named_parameters())


def test_the_merged_model_is_written_where_it_is_wanted(
    model: ModelConfig, make_batch: MakeBatch, base: Path, tmp_path: Path
) -> None:
    trainer = trained(model, make_batch, lora=replace(LORA, merged_checkpoints=True))
    write(trainer, tmp_path / "step_00002", base)
    merged = load_decoder(tmp_path / "step_00002/merged", dtype=torch.float32)
    for name, own in merged.named_parameters():
        assert torch.equal(own, trainer.served_tensors()[name]), name


def test_training_goes_on_from_an_adapter_and_keeps_to_what_it_started_with(
    model: ModelConfig, make_batch: MakeBatch, base: Path, tmp_path: Path
) -> None:
    first = trained(model, make_batch)
    write(first, tmp_path / "adapter", base)
    name, lora = read_adapter_config(tmp_path / "adapter")
    assert name == str(base)
    assert lora == replace(LORA, adapter=str(tmp_path / "adapter"))
    second = make_trainer(model, lora=lora, algorithm=AlgorithmConfig(kl=KlConfig(coefficient=0.1)))
    for key, own in second.served_tensors().items():
        assert torch.equal(own, first.served_tensors()[key]), key
    metrics = second.train(make_batch())
    assert metrics["kl"] == pytest.approx(0.0, abs=1e-6), "the reference has the adapter too"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"use_rslora": True}, "use_rslora = True, which is not supported"),
        ({"peft_type": "IA3"}, "peft_type = 'IA3'"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save"),
        ({"r": None}, "is no adapter that can be read"),
    ],
)
def test_an_adapter_that_would_be_trained_as_something_else_is_refused(
    model: ModelConfig, base: Path, tmp_path: Path, change: dict[str, object], message: str
) -> None:
    write(make_trainer(model), tmp_path / "adapter", base)
    path = tmp_path / "adapter/adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(ModelError, match=message):
        read_adapter_config(tmp_path / "adapter")


def test_a_recipe_that_contradicts_its_adapter_is_refused(
    model: ModelConfig, base: Path, tmp_path: Path
) -> None:
    write(make_trainer(model), tmp_path / "adapter", base)
    assert with_adapter(LoraConfig(), tmp_path / "adapter").rank == LORA.rank
    with pytest.raises(ConfigError, match=r"trainer.lora.rank is 8, and 4 in the adapter"):
        with_adapter(LoraConfig(rank=8), tmp_path / "adapter")


def test_an_adapter_of_another_model_is_refused(model: ModelConfig, base: Path, tmp_path: Path) -> None:
    write(make_trainer(model, lora=replace(LORA, rank=2)), tmp_path / "adapter", base)
    other = replace(LORA, adapter=str(tmp_path / "adapter"))
    with pytest.raises(ModelError, match="adapter and model do not belong together"):
        make_trainer(model, lora=other)
