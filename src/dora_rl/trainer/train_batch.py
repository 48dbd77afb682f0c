"""What the trainer is given: trajectories, in groups, in batches. Plain data, torch-free.

A record checks what no later stage could repair: that every policy token has the logprob it was sampled at,
and that there is something to condition on. Rewards are not checked here: a reward that is no number is a
fact about a trajectory, which the trainer masks and counts.
"""

import math
from collections import Counter
from functools import cached_property
from itertools import groupby

from msgspec import Struct

from dora_rl.core.errors import DoraError
from dora_rl.core.record import Record

_LARGEST_FLOAT32 = 3.4028234663852886e38
_LARGEST_REWARD = 1e12
"""The largest reward that is believed: none measures anything so large, and a much larger one would make the
gradient's norm infinite and cost every other trajectory its update."""


class TrajectoryError(DoraError):
    """A trajectory or group contradicts itself."""


class TrainTurn(Record, frozen=True, array_like=True):
    """One turn of an episode: a stretch of tokens that the policy drew in a row."""

    order: int
    """The place of the turn among the member's turns, over all branches."""
    reward: float = 0.0
    """What the episode gave for the turn, which is part of the member's reward."""


class TrainBranch(Record, frozen=True):
    """A branch of an episode beside the first: a sequence of its own behind a context that is not trained."""

    tokens: tuple[int, ...]
    is_policy: tuple[bool, ...]
    """Whether each token was drawn in this branch; those that its context took from another were not."""
    turns: tuple[TrainTurn, ...] = ()
    """The turn of each stretch of drawn tokens."""

    def __post_init__(self) -> None:
        if len(self.is_policy) != len(self.tokens):
            raise TrajectoryError(
                f"{len(self.is_policy)} policy flags for {len(self.tokens)} tokens of a branch"
            )
        if not any(self.is_policy) or self.is_policy[0]:
            raise TrajectoryError("a branch has a context, and tokens that were drawn behind it")
        _check_turns(self.turns, self.is_policy)


class TrainTrajectory(Record, frozen=True):
    """One member of a group: what was asked, what was said, and what it was worth."""

    prompt: tuple[int, ...]
    response: tuple[int, ...]
    """Policy and environment tokens in the order they came."""
    logprobs: tuple[float, ...]
    """Logprobs of the policy tokens, as the engine recorded them: at its temperature, all words. Of an
    episode those of the first branch, then those of the others in order."""
    version: int
    """The version that generated the trajectory; of its first token where there were several."""
    reward: float
    is_policy: tuple[bool, ...] = ()
    """Whether each token of the response is the policy's; left out where all are."""
    versions: tuple[int, ...] = ()
    """The version that drew each policy token; left out where one drew all."""
    experts: tuple[bytes, ...] = ()
    """The experts behind each policy token, as the engine recorded them; left out where it did of none."""
    loss_weight: float = 1.0
    """Factor of the trajectory's loss: 0 masks it, and its reward still counts in its group."""
    label: str | None = None
    """Why the trajectory is masked or otherwise special, for example `overlong`; counted by this name."""
    is_truncated: bool = False
    """Whether the response ended at the length cap."""
    is_cut: bool = False
    """Whether tokens were drawn from a distribution cut by top-k, top-p or min-p."""
    temperature: float = 1.0
    """The temperature the trajectory was sampled at."""
    turns: tuple[TrainTurn, ...] = ()
    """The turn of each stretch of policy tokens in the response of an episode; left out, all are of one."""
    branches: tuple[TrainBranch, ...] = ()
    """The branches of an episode beside the first; they are no members, and share this one's advantage."""

    def __post_init__(self) -> None:
        if not self.prompt:
            raise TrajectoryError("a trajectory has an empty prompt: nothing predicts its first token")
        if self.is_policy and len(self.is_policy) != len(self.response):
            raise TrajectoryError(f"{len(self.is_policy)} policy flags for {len(self.response)} tokens")
        if len(self.logprobs) != self.num_policy_tokens:
            raise TrajectoryError(f"{len(self.logprobs)} logprobs for {self.num_policy_tokens} policy tokens")
        if self.turns or self.branches:
            _check_turns(self.turns, self.is_policy or (True,) * len(self.response))
        if self.versions and len(self.versions) != self.num_policy_tokens:
            raise TrajectoryError(f"{len(self.versions)} versions for {self.num_policy_tokens} policy tokens")
        if self.experts and len(self.experts) != self.num_policy_tokens:
            raise TrajectoryError(f"experts of {len(self.experts)} of {self.num_policy_tokens} policy tokens")
        if not (math.isfinite(self.loss_weight) and self.loss_weight >= 0):
            raise TrajectoryError(f"loss weight {self.loss_weight} is not a finite number of at least 0")
        if not 0 <= self.temperature < math.inf:
            raise TrajectoryError(f"temperature {self.temperature}")

    @property
    def is_scored(self) -> bool:
        """Whether the reward, and that of each turn, is a number that is believed."""
        turns = (*self.turns, *(turn for branch in self.branches for turn in branch.turns))
        return all(abs(reward) <= _LARGEST_REWARD for reward in (self.reward, *(t.reward for t in turns)))

    @property
    def is_absurd(self) -> bool:
        """Whether the reward is a number, also as a float32, and too large to be believed."""
        return _LARGEST_REWARD < abs(self.reward) <= _LARGEST_FLOAT32

    @property
    def num_policy_tokens(self) -> int:
        """Number of tokens the policy drew, over all branches."""
        first = sum(self.is_policy) if self.is_policy else len(self.response)
        return first + sum(sum(branch.is_policy) for branch in self.branches)

    @property
    def num_tokens(self) -> int:
        """Number of tokens of prompt and response, and of the other branches."""
        return len(self.prompt) + len(self.response) + sum(len(each.tokens) for each in self.branches)

    @property
    def policy_positions(self) -> list[int]:
        """Positions of the policy's tokens in prompt and response."""
        first = len(self.prompt)
        flags = self.is_policy or (True,) * len(self.response)
        return [first + place for place, is_own in enumerate(flags) if is_own]

    @property
    def turn_lengths(self) -> list[tuple[TrainTurn, int]]:
        """Every turn and the number of its policy tokens, in the order of the logprobs."""
        if not self.turns:
            return [(TrainTurn(order=0), self.num_policy_tokens)]
        rows = (
            (self.turns, self.is_policy or (True,) * len(self.response)),
            *((branch.turns, branch.is_policy) for branch in self.branches),
        )
        return [pair for turns, flags in rows for pair in zip(turns, _stretches(flags), strict=True)]


def _stretches(flags: tuple[bool, ...]) -> list[int]:
    """Lengths of the stretches of policy tokens."""
    return [sum(1 for _ in own) for is_own, own in groupby(flags) if is_own]


def _check_turns(turns: tuple[TrainTurn, ...], flags: tuple[bool, ...]) -> None:
    if len(turns) != (num := len(_stretches(flags))):
        raise TrajectoryError(f"{len(turns)} turns for {num} stretches of policy tokens")


class TrainGroup(Record, frozen=True):
    """One prompt and its trajectories: what advantages are taken over."""

    id: int
    members: tuple[TrainTrajectory, ...]

    def __post_init__(self) -> None:
        if not self.members:
            raise TrajectoryError(f"group {self.id} has no members")


class TrainBatch(Struct, frozen=True, kw_only=True, dict=True):
    """The groups that one train step consumes."""

    groups: tuple[TrainGroup, ...]

    def __post_init__(self) -> None:
        if not self.groups:
            raise TrajectoryError("a batch without groups")
        twice = [id for id, count in Counter(group.id for group in self.groups).items() if count > 1]
        if twice:
            raise TrajectoryError(f"group {twice[0]} is in the batch twice")

    @cached_property
    def num_tokens(self) -> int:
        """Number of tokens of all trajectories, prompts included."""
        return sum(member.num_tokens for group in self.groups for member in group.members)
