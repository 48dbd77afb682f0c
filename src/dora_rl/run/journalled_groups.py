"""A group as the journal has it becomes one as the trainer takes it."""

import math

from dora_rl.engines.requests import Sampling
from dora_rl.store.journal_records import FinishedGroup
from dora_rl.trainer.train_batch import TrainGroup, TrainTrajectory


def group_of(finished: FinishedGroup, sampling: Sampling) -> TrainGroup:
    """A journalled group as the trainer takes it: always read back, so a replay trains on the same bits."""
    members = []
    for whole in finished.members:
        response = whole.response
        is_policy = response.is_policy
        drawn = tuple(version for version in response.versions if version is not None)
        members.append(
            TrainTrajectory(
                prompt=whole.prompt,
                response=response.tokens,
                logprobs=response.logprobs,
                version=drawn[0] if drawn else whole.version,
                versions=drawn if len(set(drawn)) > 1 else (),
                # What is no number is masked by the trainer, and counted.
                reward=math.nan if whole.reward is None else whole.reward,
                is_policy=() if all(is_policy) else is_policy,
                is_truncated=whole.is_truncated,
                is_cut=sampling.is_cut,
                temperature=sampling.temperature,
            )
        )
    return TrainGroup(id=finished.group, members=tuple(members))
