"""Trajectories made ready for the loss: masked, weighed and with an advantage for every token. On the CPU.

What a micro-batch needs of a trajectory is decided here once, from its group and its batch, so that micro-
batches can be cut anywhere. Token weights are relative: they lack the one factor that depends on the whole
mini-batch (`batch_scale`), which is applied to the gradient when the mini-batch is complete.
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from dora_rl.algorithms.advantages import outcome_advantages, turn_advantages
from dora_rl.algorithms.aggregation import BatchCounts, token_weights
from dora_rl.algorithms.critic import Estimate, gae, normalised, rewards_at_ends
from dora_rl.algorithms.custom import UserAdvantage
from dora_rl.algorithms.regularisers import (
    MASKED_OVERLONG,
    is_masked,
    kl_terms,
    rewards_less_kl,
    rewards_less_overlong,
)
from dora_rl.algorithms.tokens import sums_N
from dora_rl.core.recipe.algorithm import (
    AdvantageConfig,
    AggregationConfig,
    AlgorithmConfig,
    Credit,
    CustomAdvantageConfig,
    GaeConfig,
)
from dora_rl.trainer.train_batch import TrainGroup, TrainTrajectory

NAN_REWARD = "masked: nan reward"
ABSURD_REWARD = "masked: absurd reward"
NAN_LOGPROB = "masked: nan logprob"
EMPTY_RESPONSE = "masked: empty response"
ZERO_WEIGHT = "masked: zero weight"
_UNRANKED = (NAN_REWARD, ABSURD_REWARD, NAN_LOGPROB)


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenScores:
    """What was computed about a trajectory's policy tokens before its loss, under frozen weights."""

    reference_P: Tensor | None = None
    proximal_P: Tensor | None = None
    recomputed_P: Tensor | None = None
    """Logprobs as the trainer computes them, each under the version that drew its token; the recorded one
    where that version is not kept."""
    is_recomputed_P: Tensor | None = None
    """Whether the version that drew each token is kept (bool); None where none of them is."""
    values_P: Tensor | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """One trajectory that is trained on; P counts its policy tokens."""

    trajectory: TrainTrajectory
    place: int
    """Index of the example's group among those it was prepared with."""
    advantages_P: Tensor
    weights_P: Tensor
    scores: TokenScores
    returns_P: Tensor | None = None


@dataclass(slots=True, kw_only=True)
class PreparedExamples:
    """The examples of some groups, and what was left out of the loss, by name."""

    examples: list[Example] = field(default_factory=list)
    masked: dict[str, int] = field(default_factory=dict)


def mask_of(trajectory: TrainTrajectory, algorithm: AlgorithmConfig) -> str | None:
    """Why a trajectory has no token in the loss, or None where it has."""
    if not trajectory.is_scored:
        return ABSURD_REWARD if trajectory.is_absurd else NAN_REWARD
    if not math.isfinite(sum(trajectory.logprobs)):
        return NAN_LOGPROB
    if not trajectory.num_policy_tokens:
        return EMPTY_RESPONSE
    if trajectory.loss_weight == 0:
        return f"masked: {trajectory.label}" if trajectory.label else ZERO_WEIGHT
    is_cut_N = torch.tensor([trajectory.is_truncated])
    return MASKED_OVERLONG if bool(is_masked(is_cut_N, algorithm.overlong)) else None


def prepared(
    groups: Sequence[TrainGroup],
    scores: Sequence[TokenScores],
    algorithm: AlgorithmConfig,
    *,
    max_response_tokens: int | None = None,
    own_advantage: UserAdvantage | None = None,
) -> PreparedExamples:
    """Examples of whole groups; `scores` has one entry for each member, in order.

    `own_advantage` is the user's function where the algorithm's advantage is one.
    """
    places = [place for place, group in enumerate(groups) for _ in group.members]
    members = [member for group in groups for member in group.members]
    reasons = [mask_of(member, algorithm) for member in members]
    # What is no number, or absurd, would make its whole group so: it is left out of every mean.
    ranked = [i for i, reason in enumerate(reasons) if reason not in _UNRANKED]
    known = [members[i] for i in ranked], [scores[i] for i in ranked]
    rewards_N = _rewards(*known, algorithm, max_response_tokens)
    group_N = torch.tensor([places[i] for i in ranked], dtype=torch.int64)
    advantage = own_advantage or algorithm.advantage
    if isinstance(advantage, GaeConfig):
        is_trained_N = torch.tensor([reasons[i] is None for i in ranked], dtype=torch.bool)
        advantages = _critic_advantages(*known, rewards_N, is_trained_N, advantage, algorithm.credit)
    else:
        assert not isinstance(advantage, CustomAdvantageConfig), "its function is loaded"
        counts = [each.num_policy_tokens for each in known[0]]
        if not isinstance(advantage, AdvantageConfig):
            advantages_T = advantage(rewards_N, group_N, torch.tensor(counts))[_owners(known[0])]
        elif algorithm.credit == "turn":
            advantages_T = _turn_advantages(known[0], rewards_N, group_N, advantage)
        else:
            advantages_T = outcome_advantages(rewards_N, group_N, advantage)[_owners(known[0])]
        advantages = [(own_P, None) for own_P in advantages_T.split(counts)]

    examples = []
    for i, (advantages_P, returns_P) in zip(ranked, advantages, strict=True):
        if reasons[i] is None:
            own_tokens = torch.zeros(len(advantages_P), dtype=torch.int64)
            weights_P = token_weights(algorithm.aggregation, own_tokens, 1, _ALONE)
            examples.append(
                Example(
                    trajectory=members[i],
                    place=places[i],
                    advantages_P=advantages_P,
                    weights_P=members[i].loss_weight * weights_P,
                    scores=scores[i],
                    returns_P=returns_P,
                )
            )
    return PreparedExamples(examples=examples, masked=dict(Counter(filter(None, reasons))))


def batch_scale(config: AggregationConfig, counts: BatchCounts) -> float:
    """The factor that relative token weights lack."""
    one_token = torch.zeros(1, dtype=torch.int64)
    whole = token_weights(config, one_token, 1, counts)
    return float(whole.double() / token_weights(config, one_token, 1, _ALONE).double())


_ALONE = BatchCounts(num_tokens=1, num_trajectories=1)


def _rewards(
    trajectories: Sequence[TrainTrajectory],
    scores: Sequence[TokenScores],
    algorithm: AlgorithmConfig,
    max_response_tokens: int | None,
) -> Tensor:
    rewards_N = torch.tensor([each.reward for each in trajectories], dtype=torch.float64)
    if algorithm.overlong.penalty and max_response_tokens is not None:
        # The cap is that of a turn.
        tokens_N = torch.tensor([max(length for _, length in each.turn_lengths) for each in trajectories])
        rewards_N = rewards_less_overlong(
            rewards_N, tokens_N, algorithm.overlong, max_tokens=max_response_tokens
        )
    kl = algorithm.kl
    if kl is None or kl.into == "loss" or not trajectories:
        return rewards_N
    recorded_T = torch.tensor([logprob for each in trajectories for logprob in each.logprobs])
    reference_T = torch.cat([_needed(own.reference_P) for own in scores])
    kl_T = kl_terms(recorded_T, reference_T, kl.estimator)
    return rewards_less_kl(rewards_N, kl_T, _owners(trajectories), coefficient=kl.coefficient)


def _turn_advantages(
    trajectories: Sequence[TrainTrajectory], rewards_N: Tensor, group_N: Tensor, config: AdvantageConfig
) -> Tensor:
    """The advantage of every policy token: that of its turn, by what was given before the turn."""
    owners, given, lengths = [], [], []
    for place, trajectory in enumerate(trajectories):
        turns = trajectory.turn_lengths
        for turn, length in turns:
            owners.append(place)
            given.append(math.fsum(other.reward for other, _ in turns if other.order < turn.order))
            lengths.append(length)
    given_K = torch.tensor(given, dtype=torch.float64)
    advantages_K = turn_advantages(
        rewards_N, group_N, given_K, torch.tensor(owners, dtype=torch.int64), config
    )
    return advantages_K.repeat_interleave(torch.tensor(lengths, dtype=torch.int64))


def _critic_advantages(
    trajectories: Sequence[TrainTrajectory],
    scores: Sequence[TokenScores],
    rewards_N: Tensor,
    is_trained_N: Tensor,
    config: GaeConfig,
    credit: Credit,
) -> list[tuple[Tensor, Tensor | None]]:
    """The advantage and the return of every policy token of each trajectory, by the critic's values.

    Tokens follow one another as they were drawn, in whichever branch.
    """
    counts = [each.num_policy_tokens for each in trajectories]
    trajectory_T, in_time_T = _owners(trajectories), _in_time(trajectories)
    values_T = torch.cat([torch.zeros(0), *(_needed(own.values_P) for own in scores)])
    given_T = torch.zeros(len(values_T), dtype=torch.float64)
    if credit == "turn":
        given_T = _at_turn_ends(trajectories)
        rewards_N = rewards_N - sums_N(given_T, trajectory_T, len(rewards_N))
    rewards_T = (rewards_at_ends(rewards_N, trajectory_T) + given_T[in_time_T]).float()
    found = gae(rewards_T, values_T[in_time_T], trajectory_T, config)
    estimate = Estimate(*(torch.empty_like(own_T).index_copy_(0, in_time_T, own_T) for own_T in found))
    advantages_T = estimate.advantages_T
    if config.normalise:
        # Masked tokens have no say in the others' mean, and no use for an advantage.
        is_trained_T = is_trained_N[trajectory_T]
        advantages_T[is_trained_T] = normalised(advantages_T[is_trained_T], config.epsilon)
    return list(zip(advantages_T.split(counts), estimate.returns_T.split(counts), strict=True))


def _in_time(trajectories: Sequence[TrainTrajectory]) -> Tensor:
    """Places of all policy tokens in the order they were drawn, one trajectory after the other."""
    places, first = [torch.arange(0)], 0
    for trajectory in trajectories:
        own = []
        for turn, length in trajectory.turn_lengths:
            own.append((turn.order, torch.arange(first, first + length)))
            first += length
        places += [each for _, each in sorted(own, key=lambda pair: pair[0])]
    return torch.cat(places)


def _at_turn_ends(trajectories: Sequence[TrainTrajectory]) -> Tensor:
    """What was given for each turn at its last token, 0 at the others."""
    given = [torch.zeros(0, dtype=torch.float64)]
    for turn, length in (pair for each in trajectories for pair in each.turn_lengths):
        given.append(torch.zeros(length, dtype=torch.float64))
        given[-1][-1:] = turn.reward
    return torch.cat(given)


def _owners(trajectories: Sequence[TrainTrajectory]) -> Tensor:
    counts = torch.tensor([each.num_policy_tokens for each in trajectories], dtype=torch.int64)
    return torch.repeat_interleave(counts)


def _needed(values_P: Tensor | None) -> Tensor:
    assert values_P is not None, "the algorithm needs scores that were not computed"
    return values_P
