"""Groups as the trainer takes them: read back from the journal always, so a replay trains on the same bits.

An episode's untrained branches are left out.
"""

import math
from itertools import chain, groupby

from dora_rl.engines.requests import Sampling
from dora_rl.store.journal_records import FinishedGroup, JournalledBranch, JournalledTrajectory, Response
from dora_rl.trainer.train_batch import TrainBranch, TrainGroup, TrainTrajectory, TrainTurn


def group_of(finished: FinishedGroup, sampling: Sampling) -> TrainGroup:
    """A journalled group as the trainer takes it."""
    members = tuple(_member(whole, sampling) for whole in finished.members)
    return TrainGroup(id=finished.group, members=members)


def _member(whole: JournalledTrajectory, sampling: Sampling) -> TrainTrajectory:
    """One member: a response, and of an episode the other branches in which trained tokens were drawn."""
    others = [branch for branch in whole.branches if branch.is_trained and any(branch.response.is_policy)]
    turns = _turns(whole, others) if whole.turns or others else {}
    drawn = tuple(
        version
        for response in (whole.response, *(branch.response for branch in others))
        for version in response.versions
        if version is not None
    )
    is_policy = whole.response.is_policy
    responses = (whole.response, *(each.response for each in others))
    experts = tuple(chain.from_iterable(each.experts or (b"",) * len(each.logprobs) for each in responses))
    return TrainTrajectory(
        prompt=whole.prompt,
        response=whole.response.tokens,
        logprobs=(*whole.response.logprobs, *chain.from_iterable(each.response.logprobs for each in others)),
        version=drawn[0] if drawn else whole.version,
        versions=drawn if len(set(drawn)) > 1 else (),
        # What is no number is masked by the trainer, and counted.
        reward=math.nan if whole.reward is None else whole.reward,
        is_policy=() if all(is_policy) else is_policy,
        experts=experts if any(experts) else (),
        is_truncated=whole.is_truncated,
        is_cut=sampling.is_cut,
        temperature=sampling.temperature,
        turns=turns.get(0, ()),
        branches=tuple(
            TrainBranch(
                tokens=each.response.tokens, is_policy=each.response.is_policy, turns=turns[each.number]
            )
            for each in others
        ),
    )


def _turns(whole: JournalledTrajectory, others: list[JournalledBranch]) -> dict[int, tuple[TrainTurn, ...]]:
    """The turns that are trained on, by branch.

    What was given for a turn of an untrained branch counts for the trained turn before it, whose return it is
    part of.
    """
    trained = (JournalledBranch(number=0, response=whole.response, turns=whole.turns), *others)
    given = sorted((turn.order, turn.reward or 0.0) for each in whole.every_branch for turn in each.turns)
    # A turn that was cut has tokens and no end, and was the last.
    orders = {
        each.number: [
            *(turn.order for turn in each.turns),
            *[len(given)] * (_num_stretches(each.response) - len(each.turns)),
        ]
        for each in trained
    }
    starts = sorted(chain.from_iterable(orders.values()))
    ends = dict(zip(starts, [*starts[1:], math.inf], strict=True))
    return {
        number: tuple(
            TrainTurn(
                order=order,
                reward=math.fsum(reward for other, reward in given if order <= other < ends[order]),
            )
            for order in own
        )
        for number, own in orders.items()
    }


def _num_stretches(response: Response) -> int:
    """Number of stretches of tokens that the policy drew in a row."""
    return sum(is_own for is_own, _ in groupby(response.is_policy))
