"""A short supervised start: show a model some answers before it has to find them by itself.

Supervised learning is a policy gradient on answers that nobody sampled, each worth one: the same trainer
does it.
"""

import random
from collections.abc import Callable, Sequence

from dora_rl.core.recipe.algorithm import AdvantageConfig, AlgorithmConfig
from dora_rl.core.recipe.live import WarmStart
from dora_rl.core.recipe.loss_configs import PolicyGradientConfig
from dora_rl.core.recipe.trainer_config import GapConfig, OptimizerConfig, ScheduleConfig, TrainerConfig
from dora_rl.core.record import Record
from dora_rl.model.language_model import LanguageModel, filled_like
from dora_rl.trainer.train_batch import TrainBatch, TrainGroup, TrainTrajectory
from dora_rl.trainer.trainer_factory import trainer_of


class Shown(Record, frozen=True):
    """A prompt and what follows it, as token ids: an answer, or the turns of a whole episode."""

    prompt: tuple[int, ...]
    response: tuple[int, ...]
    is_answer: tuple[bool, ...] = ()
    """Whether each token of the response is to be learned; left out where all are."""


def warm_started(
    decoder: LanguageModel,
    shown: Sequence[Shown],
    config: WarmStart,
    *,
    seed: int,
    done: Callable[[int], None] = lambda steps: None,
) -> LanguageModel:
    """The decoder after a few supervised steps on random rows; it must be float32, and is used up.

    `done` is told the number of steps after each.
    """
    trainer = trainer_of(decoder, _trainer_config(config, seed))
    rng = random.Random(seed)
    for step in range(config.steps):
        drawn = [shown[rng.randrange(len(shown))] for _ in range(config.update_rows)]
        members = [_member(each, trainer.version) for each in drawn]
        groups = tuple(TrainGroup(id=number, members=(member,)) for number, member in enumerate(members))
        trainer.train(TrainBatch(groups=groups))
        done(step + 1)
    return filled_like(decoder, trainer.served_tensors().items())


def _member(shown: Shown, version: int) -> TrainTrajectory:
    num_learned = sum(shown.is_answer) if shown.is_answer else len(shown.response)
    return TrainTrajectory(
        prompt=shown.prompt,
        response=shown.response,
        is_policy=shown.is_answer,
        logprobs=(0.0,) * num_learned,
        version=version,
        reward=1.0,
    )


def _trainer_config(config: WarmStart, seed: int) -> TrainerConfig:
    return TrainerConfig(
        algorithm=AlgorithmConfig(
            advantage=AdvantageConfig(baseline="none", scale="none"), loss=PolicyGradientConfig()
        ),
        optimizer=OptimizerConfig(
            learning_rate=config.rate,
            beta2=config.beta2,
            learning_rate_schedule=_schedule(config.steps),
        ),
        serving_dtype="float32",
        # Answers that nobody sampled have no logprobs to compare with.
        gap=GapConfig(max_mean=1e3, max_growth=1e6),
        seed=seed,
    )


def _schedule(num_updates: int) -> ScheduleConfig:
    """A learning rate that rises within a few updates, then falls: what comes last should not count most."""
    warmup_updates = min(5, num_updates - 1)
    return ScheduleConfig(kind="linear", warmup_updates=warmup_updates, total_updates=num_updates, floor=0.1)
