"""Reinforcement learning works end to end: engine, versions, rewards, trainer.

Task: given a digit n, write n .. 0 and stop. Checked by comparing tokens; reward 1 where exact, else 0.9
times the share of it that a correct beginning covers. A fresh tiny model first sees some countdowns that
stop anywhere; that they must reach 0 it learns from rewards alone, on batches that are one version old.
"""

import random
from collections.abc import Sequence
from statistics import fmean

import pytest

from dora_rl.core.recipe.algorithm import AdvantageConfig, AlgorithmConfig
from dora_rl.core.recipe.loss_configs import PolicyGradientConfig, PpoConfig
from dora_rl.core.recipe.trainer_config import GapConfig, OptimizerConfig, ScheduleConfig, TrainerConfig
from dora_rl.engines.config import EngineConfig, Limits
from dora_rl.engines.native.native_engine import NativeEngine
from dora_rl.engines.native.scheduling.stops import Stops
from dora_rl.engines.requests import Finished, Request, Sampling, Stopping, StreamKey
from dora_rl.model.characters import character_tokenizer
from dora_rl.model.decoder import Decoder
from dora_rl.model.tiny import seeded_decoder, tiny_config
from dora_rl.trainer.train_batch import TrainBatch, TrainGroup, TrainTrajectory
from dora_rl.trainer.trainer import Trainer
from dora_rl.trainer.trainer_factory import trainer_of

TOKENIZER = character_tokenizer("0123456789:")
EOS: int = TOKENIZER.eos_token_id
MODEL = tiny_config(len(TOKENIZER), (EOS,))
NUM_STEPS, NUM_PROMPTS, GROUP_SIZE = 60, 16, 8

SUPERVISED = TrainerConfig(
    algorithm=AlgorithmConfig(
        advantage=AdvantageConfig(baseline="none", scale="none"), loss=PolicyGradientConfig()
    ),
    optimizer=OptimizerConfig(learning_rate=3e-3),
    serving_dtype="float32",
    # Answers that nobody sampled have no logprobs to compare with.
    gap=GapConfig(max_mean=1e3),
)
REINFORCED = TrainerConfig(
    algorithm=AlgorithmConfig(loss=PpoConfig(clip_low=0.2, clip_high=0.28)),
    optimizer=OptimizerConfig(
        learning_rate=2e-3,
        learning_rate_schedule=ScheduleConfig(kind="linear", total_updates=NUM_STEPS, floor=0.1),
    ),
    serving_dtype="float32",
)


def ids(text: str) -> tuple[int, ...]:
    return tuple(TOKENIZER.convert_tokens_to_ids(list(text)))


def answer(n: int, last: int = 0) -> tuple[int, ...]:
    return (*ids("".join(str(digit) for digit in range(n, last - 1, -1))), EOS)


def reward(n: int, tokens: Sequence[int]) -> float:
    right = answer(n)
    num_right = next((i for i, (a, b) in enumerate(zip(tokens, right, strict=False)) if a != b), len(tokens))
    return 1.0 if tuple(tokens) == right else 0.9 * min(num_right, len(right)) / len(right)


def warmed_up(seed: int) -> Decoder:
    rng = random.Random(seed)
    trainer = trainer_of(seeded_decoder(MODEL, seed), SUPERVISED)
    for _ in range(30):
        numbers = [rng.randint(1, 9) for _ in range(32)]
        shown = [(n, answer(n, last=rng.randint(0, n))) for n in numbers]
        members = [
            TrainTrajectory(
                prompt=ids(f"{n}:"),
                response=response,
                logprobs=(0.0,) * len(response),
                version=trainer.version,
                reward=1.0,
            )
            for n, response in shown
        ]
        groups = tuple(TrainGroup(id=i, members=(member,)) for i, member in enumerate(members))
        trainer.train(TrainBatch(groups=groups))
    decoder = Decoder.empty(MODEL)
    decoder.load_state_dict(trainer.served_tensors())
    return decoder


class Run:
    """One engine and one trainer, the batch of a step generated while the one before it is trained on."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.rng = random.Random(seed)
        self.trainer: Trainer = trainer_of(warmed_up(seed), REINFORCED)
        limits = Limits(num_blocks=600, block_size=8, max_running=128, step_tokens=512, max_positions=64)
        stops = Stops([EOS], decode=lambda tokens: str(TOKENIZER.decode(list(tokens))))
        self.engine = NativeEngine(MODEL, EngineConfig(limits=limits, max_versions=3), stops)
        self.publish()

    def publish(self) -> None:
        version = self.trainer.version
        tensors = {name: tensor.clone() for name, tensor in self.trainer.served_tensors().items()}
        self.engine.load_version(version, tensors)
        if version >= 2:
            self.engine.drop_version(version - 2)

    def generate(self, epoch: int, numbers: Sequence[int], **sampling: float) -> TrainBatch:
        version = self.trainer.version
        for row, n in enumerate(numbers):
            for member in range(GROUP_SIZE):
                self.engine.submit(
                    Request(
                        id=row * GROUP_SIZE + member,
                        version=version,
                        prompt=ids(f"{n}:"),
                        key=StreamKey(seed=self.seed, epoch=epoch, row=row, member=member),
                        sampling=Sampling(**sampling),  # type: ignore[arg-type]
                        stopping=Stopping(max_new_tokens=12),
                        group=epoch * 1000 + row,
                    )
                )
        ended = {event.id: event for event in self.engine.run() if isinstance(event, Finished)}
        members = [
            TrainTrajectory(
                prompt=ids(f"{n}:"),
                response=own.tokens,
                logprobs=own.logprobs,
                version=own.version,
                reward=reward(n, own.tokens),
                is_truncated=own.reason == "length",
            )
            for row, n in enumerate(numbers)
            for own in (ended[row * GROUP_SIZE + member] for member in range(GROUP_SIZE))
        ]
        parts = (members[i : i + GROUP_SIZE] for i in range(0, len(members), GROUP_SIZE))
        return TrainBatch(groups=tuple(TrainGroup(id=i, members=tuple(part)) for i, part in enumerate(parts)))

    def evaluate(self, epoch: int, **sampling: float) -> list[float]:
        """Rewards of every number there is."""
        batch = self.generate(epoch, range(1, 10), **sampling)
        return [member.reward for group in batch.groups for member in group.members]

    def learn(self) -> list[dict[str, float]]:
        batch, metrics = self.draw(0), []
        for step in range(NUM_STEPS):
            following = self.draw(step + 1)
            metrics.append(self.trainer.train(batch))
            self.publish()
            batch = following
        return metrics

    def draw(self, epoch: int) -> TrainBatch:
        return self.generate(epoch, [self.rng.randint(1, 9) for _ in range(NUM_PROMPTS)])


def share_exact(rewards: Sequence[float]) -> float:
    return fmean(own == 1 for own in rewards)


@pytest.mark.slow
@pytest.mark.timeout(120)
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_reward_rises_on_every_seed(seed: int) -> None:
    run = Run(seed)
    before, greedy_before = run.evaluate(9000), run.evaluate(9001, temperature=0.0)
    metrics = run.learn()
    after, greedy_after = run.evaluate(9002), run.evaluate(9003, temperature=0.0)
    assert fmean(after) > fmean(before) + 0.2
    assert share_exact(after) > share_exact(before) + 0.2
    # Engine and trainer computed the same distribution, and every later batch was one version old.
    assert metrics[0]["logprob_gap/max"] < 1e-4
    assert {each["staleness/max"] for each in metrics[1:]} == {1.0}
    assert all(each["updates/skipped"] == 0 for each in metrics)
    shares = [share_exact(rewards) for rewards in (before, after, greedy_before, greedy_after)]
    print(f"seed {seed}: reward {fmean(before):.3f} to {fmean(after):.3f}, exact sampled, greedy: {shares}")
