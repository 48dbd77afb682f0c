"""Small trainers and single trajectories, to meet them with anything odd."""

import torch
from torch import Tensor

from dora_rl.core.recipe.trainer_config import GapConfig, OptimizerConfig, TrainerConfig
from dora_rl.model.config import ModelConfig
from dora_rl.model.tiny import seeded_decoder
from dora_rl.trainer.train_batch import TrainBatch, TrainGroup, TrainTrajectory
from dora_rl.trainer.trainer import Trainer
from dora_rl.trainer.trainer_factory import trainer_of

SILENT = GapConfig(max_mean=1e3, max_growth=1e6)


def make_trainer(model: ModelConfig, *, cap: int | None = None, **fields: object) -> Trainer:
    """A trainer of a tiny model; `cap` is the most tokens a response may have."""
    settings: dict[str, object] = {
        "serving_dtype": "float32",
        "optimizer": OptimizerConfig(learning_rate=1e-2),
        "gap": SILENT,
    }
    config = TrainerConfig(**settings | fields)  # type: ignore[arg-type]
    return trainer_of(seeded_decoder(model, seed=0), config, max_response_tokens=cap)


def member(response: tuple[int, ...] = (4, 5), reward: float = 0.0, **fields: object) -> TrainTrajectory:
    made: dict[str, object] = {
        "prompt": (1, 2, 3),
        "response": response,
        "logprobs": (-4.0,) * len(response),
        "version": 0,
        "reward": reward,
    }
    return TrainTrajectory(**made | fields)  # type: ignore[arg-type]


def batch_of(*groups: tuple[TrainTrajectory, ...]) -> TrainBatch:
    return TrainBatch(groups=tuple(TrainGroup(id=i, members=own) for i, own in enumerate(groups)))


def weights_of(trainer: Trainer) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in trainer.served_tensors().items()}


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return all(torch.equal(one[name], other[name]) for name in one)


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
