"""One episode in progress: what it asked for and is not answered yet, its code's time, its rewards.

Lives in the loop of its process. Knows neither the function that is the episode nor how its words reach the
run.
"""

import asyncio
import math
import random
from collections.abc import Callable, Mapping
from typing import Any

from msgspec import Struct

from dora_rl.envs.chat.codec import Codec
from dora_rl.envs.episodes.branch import ROOT
from dora_rl.envs.episodes.episode_messages import (
    BeginEpisode,
    EpisodeReply,
    OnceAsked,
    OnceDone,
    OnceRecorded,
    OnceRun,
    RoleAsked,
    RoleSaid,
    TurnAsked,
    TurnTaken,
)
from dora_rl.envs.episodes.limits import CodeClock, EpisodeLimits, LimitFault
from dora_rl.envs.episodes.role import Player
from dora_rl.envs.episodes.turn import EpisodeClosed, EpisodeTruncated, TruncationReason
from dora_rl.envs.scoring.reward_scorer import LARGEST

Answer = TurnTaken | OnceRun | OnceRecorded | RoleSaid


class Door(Struct, frozen=True, kw_only=True):
    """How an agent reaches a chat over HTTP."""

    base_url: str
    api_key: str
    turns: Any
    """Who answers it: AgentTurns."""


class Episode:
    """The state that all branches of an episode share."""

    def __init__(
        self,
        begin: BeginEpisode,
        *,
        run: str,
        codec: Codec,
        limits: EpisodeLimits,
        say: Callable[[EpisodeReply], None],
        expired: Callable[["Episode", LimitFault, float], None],
        open_door: Callable[["Episode", Any], Door],
        roles: Mapping[str, Player],
    ) -> None:
        """`run` is the run's own name; `expired` is told of a limit; `open_door` lets agents to a chat."""
        self.begin = begin
        self.roles = roles
        self.codec = codec
        self.loop = asyncio.get_running_loop()
        self._run = run
        self._clock = CodeClock(limits, lambda fault, limit_s: expired(self, fault, limit_s))
        self._say = say
        self._open_door = open_door
        self._doors: dict[int, Door] = {}
        """Doors by the chat they lead to."""
        self._turns = asyncio.Lock()
        self._asked: dict[tuple[int, int], asyncio.Future[Answer]] = {}
        self.branches: set[int] = set()
        """Numbers of the branches that were opened."""
        self.has_begun = False
        """Whether a turn was asked for, by whoever began the attempt."""
        """Whether it has asked for a turn: the first is what its group's prompt is made of."""
        self._refused: dict[int | None, TruncationReason] = {}
        """Branches that get no further turn, and why; under None, that none of them does."""
        self.threads: set[int] = set()
        """Threads in which code of the episode runs."""
        self.task: asyncio.Task[None] | None = None
        """The task that runs its code."""
        self.is_over = False
        self.is_truncated = False
        """Whether the last turn that was asked for was refused."""
        self.total: float | None = None
        """The sum of all rewards given so far; None if there was none."""
        self.last_rewards: dict[int, float] = {}
        """By branch, what was given for its last turn."""
        self.told_rewards: list[tuple[int, int, float]] = []
        """What was given for earlier turns: the branch, and the operation that was asked for next."""
        self.num_snapshots = 0
        self.values: dict[str, float] = {}
        self.endings: list[Callable[[bool], None]] = []
        """Who is told of the end, and whether it was in order."""

    # --- asking the run -------------------------------------------------------------------------

    async def ask_turn(self, asked: TurnAsked) -> TurnTaken:
        """Ask for a turn, after those that other branches ask for; raises EpisodeTruncated."""
        async with self._turns:
            self.check_turn(asked.branch)
            if asked.branch != ROOT and not self.has_begun:
                raise RuntimeError("the first turn of an episode is taken in the chat that it is given")
            self.has_begun = True
            taken = await self._ask(asked)
            assert isinstance(taken, TurnTaken), f"a turn was asked for, and the answer is {taken}"
            self.is_truncated = False
            if taken.finish != "stop" and taken.finish != "length":
                self._refused[asked.branch if taken.finish == "context" else None] = taken.finish
                self.check_turn(asked.branch)
            return taken

    def check_turn(self, branch: int) -> None:
        """Raise EpisodeTruncated if it is known that a branch gets no further turn."""
        self.check_open()
        if self._clock.is_used_up:
            self._refused.setdefault(None, "time")
        reason = self._refused.get(None) or self._refused.get(branch)
        if reason is not None:
            self.is_truncated = True
            raise EpisodeTruncated(reason)

    async def ask_once(self, asked: OnceAsked | OnceDone) -> OnceRun | OnceRecorded:
        """Ask whether the value of a side effect is known, or have it written down."""
        answer = await self._ask(asked)
        assert isinstance(answer, OnceRun | OnceRecorded), f"a once was asked for, and got {answer}"
        return answer

    async def ask_role(self, asked: RoleAsked) -> RoleSaid:
        """Have a version play its role for a turn; raises EpisodeTruncated where its context is full."""
        said = await self._ask(asked)
        assert isinstance(said, RoleSaid), f"a role was asked, and the answer is {said}"
        if said.finish == "context":
            self.is_truncated = True
            raise EpisodeTruncated("context")
        if said.problem is not None:
            raise RuntimeError(f"the role '{asked.role}' said nothing: {said.problem}")
        return said

    def check_alone(self) -> None:
        """Raise RuntimeError unless the chat that the episode was given is all there is of it now."""
        if self._asked or self._turns.locked():
            raise RuntimeError("another chat of the episode waits for an answer: await it first")
        if self._doors:
            raise RuntimeError("an episode that is also played over HTTP has no snapshots: it is replayed")

    async def _ask(self, asked: TurnAsked | OnceAsked | OnceDone | RoleAsked) -> Answer:
        self.check_open()
        place = (asked.branch, asked.number)
        answer: asyncio.Future[Answer] = self.loop.create_future()
        self._asked[place] = answer
        self._clock.pause()
        self._say(asked)
        return await answer

    def answered(self, answer: Answer) -> None:
        """Let the branch that asked go on; an answer to nothing is dropped."""
        asked = self._asked.pop((answer.branch, answer.number), None)
        if asked is None:
            return
        self._clock.resume()
        if not asked.done():
            asked.set_result(answer)

    async def call_in_thread(self, function: Callable[[], Any]) -> Any:
        """Call what may block in a thread."""
        # A cancelled episode no longer waits for its thread, which goes on nevertheless.
        return await asyncio.shield(self.loop.run_in_executor(None, function))

    def check_open(self) -> None:
        """Raise EpisodeClosed if the run has ended this episode."""
        if self.is_over:
            raise EpisodeClosed("this episode is over: the run no longer answers it")

    def close(self) -> None:
        """End the episode: whoever of its code waits is cancelled, whoever asks again is told so."""
        self.is_over = True
        self._clock.stop()
        asked, self._asked = self._asked, {}
        for answer in asked.values():
            answer.cancel()

    # --- what it is given and gives -------------------------------------------------------------

    def opened(self, branch: int) -> None:
        """Note that a branch was opened; no two have one number."""
        if branch in self.branches:
            raise RuntimeError(f"two branches of the episode have the number {branch}: open fewer")
        self.branches.add(branch)

    def door(self, chat: Any) -> Door:
        """The door to a chat, opened when it is first asked for."""
        self.check_open()
        if id(chat) not in self._doors:
            self._doors[id(chat)] = self._open_door(self, chat)
        return self._doors[id(chat)]

    def count(self, name: str) -> None:
        """Add one to a value of this episode."""
        self.values[name] = self.values.get(name, 0.0) + 1.0

    def task_rng(self, branch: int) -> random.Random:
        """Randomness of the task, the same for all members of a group and for all attempts."""
        begin = self.begin
        # Every evaluation sets the same tasks.
        epoch = "evaluation" if begin.is_evaluation else begin.epoch
        return random.Random(f"task/{begin.seed}/{epoch}/{begin.row.row}/{branch}")

    def rng(self, branch: int) -> random.Random:
        """Randomness of this member's attempt alone."""
        return random.Random(f"member/{self._place(branch)}")

    def idempotency_key(self, branch: int, number: int, key: str) -> str:
        """The name of a side effect: the same each time this attempt is begun again, nobody else's."""
        return f"{self._run}/{self._place(branch)}/{number}/{key}"

    def _place(self, branch: int) -> str:
        begin = self.begin
        part = "evaluation" if begin.is_evaluation else "train"
        return f"{begin.seed}/{part}/{begin.epoch}/{begin.row.row}/{begin.member}/{begin.attempt}/{branch}"

    def give_reward(self, branch: int, value: float) -> None:
        """Add to the episode's total, for the last turn of a branch."""
        reward = checked_reward(value)
        self.total = reward + (self.total or 0.0)
        self.last_rewards[branch] = reward + self.last_rewards.get(branch, 0.0)


def checked_reward(value: Any) -> float:
    """A reward as a number; a ValueError that says what it is instead."""
    if isinstance(value, str | bytes) or not hasattr(value, "__float__"):
        raise ValueError(f"a reward is a number, not {value!r:.200}")
    reward = float(value)
    if not math.isfinite(reward) or abs(reward) > LARGEST:
        raise ValueError(f"a reward is finite and at most {LARGEST:g}, not {value!r:.200}")
    return reward
