"""What is trained in the benchmark: shapes made without files, batches of given lengths, and what they cost.

Arithmetic counted: every matrix product of the parameters, the head's included, and causal attention, three
times the forward pass. What is computed again is not counted.
"""

import math
import random

from dora_rl.model.config import ModelConfig
from dora_rl.model.random_models import QWEN3_06B, QWEN3_17B, TINY
from dora_rl.trainer.train_batch import TrainBatch, TrainGroup, TrainTrajectory

SHAPES = {"0.6B": QWEN3_06B, "1.7B": QWEN3_17B, "tiny": TINY}


def batch_of(lengths: list[int], vocab_size: int, group_size: int = 4, seed: int = 0) -> TrainBatch:
    """A batch of random tokens after a prompt of one, with uniform logprobs and random rewards."""
    rng = random.Random(seed)
    logprob = -math.log(vocab_size)
    members = [
        TrainTrajectory(
            prompt=(rng.randrange(vocab_size),),
            response=tuple(rng.randrange(vocab_size) for _ in range(length - 1)),
            logprobs=(logprob,) * (length - 1),
            version=0,
            reward=rng.random(),
        )
        for length in lengths
    ]
    groups = [members[i : i + group_size] for i in range(0, len(members), group_size)]
    return TrainBatch(groups=tuple(TrainGroup(id=i, members=tuple(own)) for i, own in enumerate(groups)))


def train_flops(config: ModelConfig, lengths: list[int]) -> float:
    """Operations of one forward and backward pass over sequences, every token but the first predicted."""
    layer = config.hidden_size * (2 * config.q_size + 2 * config.kv_size + 3 * config.intermediate_size)
    head = config.vocab_size * config.hidden_size
    tokens, predicted = sum(lengths), sum(length - 1 for length in lengths)
    products = 2 * (config.num_layers * layer * tokens + head * predicted)
    # Scores and mixing: each of the pairs a token sees costs two products of the width of all query heads.
    pairs = sum(length * (length + 1) // 2 for length in lengths)
    attention = 2 * 2 * config.num_layers * config.q_size * pairs
    return 3.0 * (products + attention)
