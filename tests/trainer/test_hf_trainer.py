"""Models of transformers are trained as native ones are: engine and trainer agree, checkpoints go on."""

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from dora_rl.bench.tiny_models import EOS, FAMILIES, save_tiny_hf
from dora_rl.core.errors import ConfigError
from dora_rl.core.recipe.algorithm import AlgorithmConfig
from dora_rl.core.recipe.trainer_config import LoraConfig, OptimizerConfig, TrainerConfig
from dora_rl.engines.config import EngineConfig, Limits
from dora_rl.engines.kinds import load_kind
from dora_rl.engines.protocol import EngineOpening
from dora_rl.engines.requests import Finished, Request, Stopping, StreamKey
from dora_rl.model.language_model import load_model
from dora_rl.trainer.checkpoint import load_checkpoint, save_checkpoint
from dora_rl.trainer.export import export
from dora_rl.trainer.train_batch import TrainBatch, TrainGroup, TrainTrajectory
from dora_rl.trainer.trainer import Trainer
from dora_rl.trainer.trainer_factory import trainer_of
from dora_rl.weights.store import Store

PROMPTS = ((5, 9, 11, 17), (8, 30, 31, 40, 41, 42, 43, 50, 60, 70, 80))


BRIEF = ("gemma3", "gpt2", "granite")
"""Families with what is oddest in a trainer: windows, transposed matrices, a head of its own."""


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(
            each, marks=() if each in BRIEF else pytest.mark.slow
        )  # All together take half a minute.
        for each in FAMILIES
    ],
)
def directory(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_hf(request.param, tmp_path_factory.mktemp(request.param))


def trainer_for(directory: Path, *, is_filled_up: bool = False, **fields: object) -> Trainer:
    settings: dict[str, object] = {
        "serving_dtype": "float32",
        "optimizer": OptimizerConfig(learning_rate=1e-2),
        "algorithm": AlgorithmConfig(),
        "micro_batch_tokens": 64,
    }
    model = load_model(directory, "transformers", dtype=torch.float32, is_filled_up=is_filled_up)
    return trainer_of(model, TrainerConfig(**settings | fields))  # type: ignore[arg-type]


def generated(directory: Path, store: Path, version: int, num_tokens: int = 20) -> list[TrainTrajectory]:
    """Four answers to each prompt, drawn by the engine from a published version."""
    limits = Limits(num_blocks=64, block_size=8, max_running=8, step_tokens=32, max_positions=128)
    opening = EngineOpening(
        config=EngineConfig(limits=limits, max_versions=2),
        model=directory,
        versions=Store(store),
        stop_tokens=(EOS,),
    )
    engine = load_kind("transformers").open(opening)
    engine.finish_version(engine.begin_version(version))
    stopping = Stopping(max_new_tokens=num_tokens, is_length_prescribed=True)
    asked = {
        4 * row + member: Request(
            id=4 * row + member,
            version=version,
            prompt=prompt,
            key=StreamKey(seed=3, row=row, member=member),
            stopping=stopping,
        )
        for row, prompt in enumerate(PROMPTS)
        for member in range(4)
    }
    for request in asked.values():
        engine.submit(request)
    while engine.step():
        pass
    ended = {event.id: event for event in engine.finished()}
    found = []
    for number, request in asked.items():
        event = ended[number]
        assert isinstance(event, Finished), event
        found.append(
            TrainTrajectory(
                prompt=request.prompt,
                response=event.tokens,
                logprobs=event.logprobs,
                version=version,
                reward=float(number % 3 == 0),
            )
        )
    return found


def batch_of(members: list[TrainTrajectory]) -> TrainBatch:
    groups = (members[first : first + 4] for first in range(0, len(members), 4))
    return TrainBatch(groups=tuple(TrainGroup(id=i, members=tuple(each)) for i, each in enumerate(groups)))


def test_engine_and_trainer_agree_before_and_after_a_step(directory: Path, tmp_path: Path) -> None:
    trainer = trainer_for(directory)
    with Store(tmp_path / "store") as store:
        for version in range(3):
            store.publish(version, trainer.served_tensors())
            metrics = trainer.train(batch_of(generated(directory, tmp_path / "store", version)))
            assert metrics["logprob_gap/mean"] < 1e-5
            assert metrics["grad_norm"] > 0
    export(trainer, tmp_path / "trained", origin=directory)
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "trained")
    weights = dict(again.named_parameters())
    served = trainer.served_tensors()
    assert all(torch.equal(weights[name], each) for name, each in served.items())
    before = dict(AutoModelForCausalLM.from_pretrained(directory).named_parameters())
    assert any(not torch.equal(before[name], weights[name]) for name in weights)


def made_up(version: int) -> TrainBatch:
    members = [
        TrainTrajectory(
            prompt=prompt,
            response=tuple((7 * version + 3 * member + i) % 90 + 3 for i in range(6 + member)),
            logprobs=(-4.0,) * (6 + member),
            version=version,
            reward=float(member),
        )
        for prompt in PROMPTS
        for member in range(4)
    ]
    return batch_of(members)


@pytest.mark.parametrize("lora", [None, LoraConfig(rank=2)], ids=["full", "lora"])
def test_a_loaded_trainer_goes_on_bit_for_bit(
    directory: Path, tmp_path: Path, lora: LoraConfig | None
) -> None:
    if lora is not None and directory.name.startswith(("gpt2", "mamba")):
        pytest.skip("none of the default targets is a matrix of this model")
    trainer = trainer_for(directory, lora=lora)
    trainer.train(made_up(0))
    save_checkpoint(trainer, tmp_path / "state")
    expected = trainer.train(made_up(1)), trainer.served_tensors()
    resumed = trainer_for(directory, lora=lora)
    load_checkpoint(resumed, tmp_path / "state")
    found = resumed.train(made_up(1)), resumed.served_tensors()
    assert found[0]["loss"] == expected[0]["loss"]
    assert all(torch.equal(found[1][name], each) for name, each in expected[1].items())


def test_a_fused_head_is_refused_where_the_head_is_the_models_own(tmp_path: Path) -> None:
    for family in ("granite", "gemma2"):
        directory = save_tiny_hf(family, tmp_path / family)
        with pytest.raises(ConfigError, match=r"trainer\.fused_head = true is for logits that are a product"):
            trainer_for(directory, fused_head=True)
        trainer_for(directory, fused_head=False)
    versions = []
    for is_fused in (False, True):
        trainer = trainer_for(save_tiny_hf("gemma3", tmp_path / f"gemma3-{is_fused}"), fused_head=is_fused)
        trainer.train(made_up(0))
        versions.append(trainer.served_tensors())
    for name, apart in versions[0].items():
        torch.testing.assert_close(versions[1][name], apart, atol=1e-4, rtol=1e-3)


def test_packing_changes_no_gradient(directory: Path) -> None:
    versions = []
    for is_filled_up in (False, True):
        trainer = trainer_for(directory, is_filled_up=is_filled_up)
        trainer.train(made_up(0))
        versions.append(trainer.served_tensors())
    for name, packed in versions[0].items():
        torch.testing.assert_close(packed, versions[1][name], atol=1e-4, rtol=1e-3)
