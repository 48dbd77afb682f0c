"""A made-up group, as large as a micro-batch, for a trainer to run before there is a real one."""

import math

from dora_rl.trainer.train_batch import TrainGroup, TrainTrajectory

_LONGEST = 512


def made_up_group(num_tokens: int, *, longest: int, vocab_size: int, version: int) -> TrainGroup:
    """A group of about so many tokens, of at least two members of equal length with rewards that differ."""
    length = max(2, min(_LONGEST, longest, num_tokens // 2))
    num_members = max(2, num_tokens // length)
    logprob = -math.log(vocab_size)
    return TrainGroup(
        id=0,
        members=tuple(
            TrainTrajectory(
                prompt=(0,),
                response=tuple((member + 7 * place) % vocab_size for place in range(length - 1)),
                logprobs=(logprob,) * (length - 1),
                version=version,
                reward=float(member % 2),
            )
            for member in range(num_members)
        ),
    )
