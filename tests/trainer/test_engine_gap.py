"""Engine and trainer, given one version, agree on what its tokens' logprobs are."""

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from dora_rl.core.recipe.trainer_config import GapConfig, OptimizerConfig, TrainerConfig
from dora_rl.engines.config import EngineConfig, Limits
from dora_rl.engines.native.engine_factory import open_engine
from dora_rl.engines.requests import Finished, Request, Sampling, Stopping, StreamKey
from dora_rl.model.load import load_decoder
from dora_rl.model.tiny import save_tiny
from dora_rl.trainer.export import export
from dora_rl.trainer.train_batch import TrainBatch, TrainGroup, TrainTrajectory
from dora_rl.trainer.trainer_factory import trainer_of

LIMITS = Limits(num_blocks=200, block_size=8, max_running=32, step_tokens=128, max_positions=128)


@pytest.mark.parametrize(("dtype", "most"), [("float32", 1e-5), ("bfloat16", 0.03)])
@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_recorded_logprobs_are_the_trainers(
    tmp_path: Path, dtype: str, most: float, temperature: float
) -> None:
    save_tiny(tmp_path / "model")
    config = TrainerConfig(
        serving_dtype=dtype,  # type: ignore[arg-type]
        optimizer=OptimizerConfig(learning_rate=1e-3),
        gap=GapConfig(max_mean=most),
    )
    trainer = trainer_of(load_decoder(tmp_path / "model", dtype=torch.float32), config)
    engine = open_engine(tmp_path / "model", EngineConfig(limits=LIMITS, dtype=dtype))  # type: ignore[arg-type]
    for step in range(2):
        for member in range(8):
            engine.submit(
                Request(
                    id=member,
                    version=step,
                    prompt=(7, 8, 9 + step),
                    key=StreamKey(seed=1, row=step, member=member),
                    sampling=Sampling(temperature=temperature),
                    stopping=Stopping(max_new_tokens=3 + 5 * member),
                    group=step,
                )
            )
        ended = [event for event in engine.run() if isinstance(event, Finished)]
        members = tuple(
            TrainTrajectory(
                prompt=(7, 8, 9 + step),
                response=each.tokens,
                logprobs=each.logprobs,
                version=each.version,
                reward=float(each.id % 3),
                temperature=temperature,
            )
            for each in ended
        )
        metrics = trainer.train(TrainBatch(groups=(TrainGroup(id=step, members=members),)))
        assert metrics["logprob_gap/mean"] < most
        assert metrics["warnings/logprob_gap"] == 0
        assert metrics["ratio_mean"] == pytest.approx(1, abs=3 * most)
        published = {name: tensor.clone() for name, tensor in trainer.served_tensors().items()}
        engine.load_version(trainer.version, published)


def test_a_trained_directory_opens_elsewhere(tmp_path: Path) -> None:
    save_tiny(tmp_path / "model")
    trainer = trainer_of(
        load_decoder(tmp_path / "model", dtype=torch.float32),
        TrainerConfig(serving_dtype="float32", optimizer=OptimizerConfig(learning_rate=1e-2)),
    )
    members = tuple(
        TrainTrajectory(prompt=(9,), response=(token, 2), logprobs=(-4.6, -4.6), version=0, reward=token / 50)
        for token in (10, 20, 30)
    )
    trainer.train(TrainBatch(groups=(TrainGroup(id=0, members=members),)))
    export(trainer, tmp_path / "trained", origin=tmp_path / "model")
    assert (tmp_path / "trained" / "tokenizer.json").exists()
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "trained", dtype=torch.float32).eval()
    logprobs = theirs(torch.tensor([[9, 30]])).logits.log_softmax(dim=-1)
    ours, _ = trainer._scorer.score(trainer.weights.policy, members)
    assert ours[2].tolist() == pytest.approx([logprobs[0, 0, 30].item(), logprobs[0, 1, 2].item()], abs=1e-4)
