"""A tiny model and batches of random trajectories, some with environment tokens."""

import random
from collections.abc import Callable

import pytest
import torch

from dora_rl.model.config import ModelConfig
from dora_rl.model.decoder import Decoder
from dora_rl.model.tiny import seeded_decoder, tiny_config
from dora_rl.trainer.train_batch import TrainBatch, TrainGroup, TrainTrajectory

VOCAB_SIZE = 61


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> None:
    # Models this small gain nothing from threads, and on a busy machine lose seconds waiting for them.
    torch.set_num_threads(1)


@pytest.fixture
def model() -> ModelConfig:
    return tiny_config(VOCAB_SIZE)


@pytest.fixture
def decoder(model: ModelConfig) -> Decoder:
    return seeded_decoder(model, seed=0)


MakeBatch = Callable[..., TrainBatch]


@pytest.fixture
def make_batch() -> MakeBatch:
    return random_batch


def random_batch(seed: int = 0, groups: int = 4, size: int = 3, **fields: object) -> TrainBatch:
    """Random prompts, responses, masks, logprobs near those of a fresh model, and rewards."""
    draw = random.Random(seed)
    return TrainBatch(
        groups=tuple(
            TrainGroup(
                id=1000 * seed + i, members=tuple(random_trajectory(draw, **fields) for _ in range(size))
            )
            for i in range(groups)
        )
    )


def random_trajectory(draw: random.Random, **fields: object) -> TrainTrajectory:
    length = draw.randint(1, 14)
    is_policy = tuple(draw.random() < 0.8 for _ in range(length)) if draw.random() < 0.5 else ()
    num_policy = sum(is_policy) if is_policy else length
    made: dict[str, object] = {
        "prompt": tuple(draw.randrange(VOCAB_SIZE) for _ in range(draw.randint(1, 9))),
        "response": tuple(draw.randrange(VOCAB_SIZE) for _ in range(length)),
        "is_policy": is_policy,
        "logprobs": tuple(draw.uniform(-4.4, -3.8) for _ in range(num_policy)),
        "version": 0,
        "reward": float(draw.randint(0, 3)),
    }
    return TrainTrajectory(**(made | fields))  # type: ignore[arg-type]
