"""Journalled groups as the trainer takes them. Always read back, so a replay trains on the same bits."""

import math

from dora_rl.engines.requests import Sampling
from dora_rl.store.records import FinishedGroup, WholeTrajectory
from dora_rl.trainer.records import TrainGroup, TrainTrajectory


def group_of(finished: FinishedGroup, sampling: Sampling) -> TrainGroup:
    """One group."""
    return TrainGroup(
        id=finished.group, members=tuple(_trajectory(member, sampling) for member in finished.members)
    )


def _trajectory(whole: WholeTrajectory, sampling: Sampling) -> TrainTrajectory:
    response = whole.response
    drawn = [stretch.version for stretch in response.stretches if stretch.version is not None]
    is_policy = response.is_policy
    return TrainTrajectory(
        prompt=whole.prompt,
        response=response.tokens,
        logprobs=response.logprobs,
        version=drawn[0] if drawn else whole.version,
        # What is no number is masked by the trainer, and counted.
        reward=math.nan if whole.reward is None else whole.reward,
        is_policy=() if all(is_policy) else is_policy,
        is_truncated=whole.is_truncated,
        is_cut=sampling.is_cut,
        temperature=sampling.temperature,
    )
