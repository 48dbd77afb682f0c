"""A snapshot of an episode: the state of its environment, with the place where its chat stood.

The journal stays the memory of an episode: a snapshot is written down like the value of a side effect, at its
place among the operations of its branch. What comes behind it is asked for and compared as ever; what came
before is not asked for again.
"""

import random
from array import array
from typing import Any

import msgspec
from msgspec import Struct

from dora_rl.envs.chat.messages import Message, ToolSchema
from dora_rl.envs.episodes.branch import Branch
from dora_rl.envs.episodes.episode import Episode

SNAPSHOT = "\0snapshot"
"""The key under which snapshots are written down among the side effects."""
LARGEST_BYTES = 16 << 20
"""Bytes of an environment's state, at most: each snapshot is kept until its group is trained on."""

RandomState = tuple[int, tuple[int, ...], float | None]


class EpisodeSnapshot(Struct, frozen=True, kw_only=True):
    """All that an episode needs to go on from here."""

    state: bytes
    """What the environment gave."""
    place: int
    """Which snapshot of the episode it is: the highest is the newest, whatever its branch."""
    number: int
    """The number of the branch that the chat stands in."""
    ids: tuple[int, ...]
    messages: list[Message]
    tools: tuple[ToolSchema, ...]
    is_trained: bool
    num_operations: int
    num_children: int
    opened: list[int]
    """Numbers of all branches so far."""
    total: float | None
    last_rewards: dict[int, float]
    told_rewards: list[tuple[int, int, float]]
    """Rewards that turns were asked with: branch, operation, value."""
    values: dict[str, float]
    rng: RandomState
    task_rng: RandomState

    @property
    def branch(self) -> Branch:
        """The branch as it was."""
        return Branch(
            number=self.number,
            ids=array("I", self.ids),
            messages=list(self.messages),
            tools=self.tools,
            is_trained=self.is_trained,
            has_begun=True,
            _num_operations=self.num_operations,
            _num_children=self.num_children,
        )


def read_snapshot(value: bytes) -> EpisodeSnapshot:
    """A snapshot as it was written down."""
    return msgspec.msgpack.decode(value, type=EpisodeSnapshot)


def taken_snapshot(
    episode: Episode, branch: Branch, state: bytes, rng: random.Random, task_rng: random.Random
) -> bytes:
    """A snapshot to be written down, of an episode whose operations before it are all answered."""
    if len(state) > LARGEST_BYTES:
        raise ValueError(f"a state of {len(state):,} bytes is too large: {LARGEST_BYTES:,} are the most")
    episode.num_snapshots += 1
    snapshot = EpisodeSnapshot(
        state=bytes(state),
        place=episode.num_snapshots,
        number=branch.number,
        ids=tuple(branch.ids),
        messages=branch.messages,
        tools=branch.tools,
        is_trained=branch.is_trained,
        num_operations=branch.num_operations,
        num_children=branch.num_children,
        opened=sorted(episode.branches),
        total=episode.total,
        last_rewards=episode.last_rewards,
        told_rewards=episode.told_rewards,
        values=episode.values,
        rng=_random_state(rng),
        task_rng=_random_state(task_rng),
    )
    return msgspec.msgpack.encode(snapshot)


def restore_episode(episode: Episode, snapshot: EpisodeSnapshot) -> None:
    """Put an episode that begins again where it was."""
    episode.has_begun = True
    episode.num_snapshots = snapshot.place
    episode.branches = set(snapshot.opened) - {snapshot.number}
    episode.total = snapshot.total
    episode.last_rewards = dict(snapshot.last_rewards)
    episode.told_rewards = list(snapshot.told_rewards)
    episode.values = dict(snapshot.values)


def _random_state(rng: random.Random) -> RandomState:
    state: Any = rng.getstate()
    return (state[0], tuple(state[1]), state[2])
