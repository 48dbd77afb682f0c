"""Runs many episodes in one loop; whatever their code does becomes a message.

    async functions     share the loop
    blocking functions  have a thread each, and a chat that blocks

Every episode that is begun is answered for exactly once, by EpisodeDone or EpisodeBroken, unless the run ends
it first. Nothing here waits: `tell` and the episodes' code are called by the loop.
"""

import asyncio
import sys
import traceback
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from dora_rl.core.recipe.endpoints import EndpointSettings
from dora_rl.envs.chat.codec import Codec
from dora_rl.envs.episodes.blocking_chat import BlockingChat
from dora_rl.envs.episodes.chat import Chat
from dora_rl.envs.episodes.doors import EpisodeDoors
from dora_rl.envs.episodes.episode import Episode, checked_reward
from dora_rl.envs.episodes.episode_function import EpisodeFunction
from dora_rl.envs.episodes.episode_messages import (
    BeginEpisode,
    EndEpisode,
    EpisodeBroken,
    EpisodeCommand,
    EpisodeDone,
    EpisodeFault,
    EpisodeReply,
    EpisodeStuck,
    OnceRecorded,
    OnceRun,
    RoleSaid,
    TurnTaken,
)
from dora_rl.envs.episodes.judge import EpisodeJudge
from dora_rl.envs.episodes.limits import EpisodeLimits, LimitFault
from dora_rl.envs.episodes.role import Player
from dora_rl.envs.episodes.threads import EpisodeThreads, running_in
from dora_rl.envs.episodes.turn import EpisodeTruncated
from dora_rl.envs.scoring.reward_scorer import RAISED

_DETAIL_CHARACTERS = 8000


class EpisodeRunner:
    """The episodes of one process, by their numbers."""

    def __init__(
        self,
        function: EpisodeFunction,
        codec: Codec,
        limits: EpisodeLimits,
        say: Callable[[EpisodeReply], None],
        *,
        run: str,
        judge: EpisodeJudge | None = None,
        endpoint: EndpointSettings | None = None,
        roles: Mapping[str, Player] | None = None,
    ) -> None:
        """Be called in the loop; `say` sends a message to the run, `run` is the run's own name.

        `judge` adds to the reward of every episode; `endpoint` is where agents are let in; `roles` are whom
        episodes speak to beside the policy.
        """
        loop = asyncio.get_running_loop()
        loop.set_default_executor(EpisodeThreads())
        self._doors = EpisodeDoors(endpoint or EndpointSettings(), loop)
        self._function = function
        self._codec = codec
        self._limits = limits
        self._say = say
        self._run_name = run
        self._judge = judge or EpisodeJudge()
        self._roles = roles or {}
        self._open: dict[int, Episode] = {}
        self._tasks: dict[asyncio.Task[None], Episode] = {}
        """Episodes by the task that runs their code, also of those that were ended and go on."""

    @property
    def num_open(self) -> int:
        return len(self._open)

    def tell(self, message: EpisodeCommand) -> None:
        """Do what the run says; words about an episode that is over are dropped."""
        match message:
            case BeginEpisode():
                self._begin(message)
            case TurnTaken() | OnceRun() | OnceRecorded() | RoleSaid() if message.episode in self._open:
                self._open[message.episode].answered(message)
            case EndEpisode() if message.episode in self._open:
                self._stop(self._open[message.episode])

    async def stop(self) -> None:
        """Let no agent in any more."""
        await self._doors.stop()

    def blocked(self, task: "asyncio.Task[Any] | None", limit_s: float, stack: str) -> EpisodeBroken | None:
        """What to say of the episode whose code keeps the loop; None if `task` is no episode's.

        May be called from another thread than the loop's, which then does nothing else.
        """
        episode = self._tasks.get(task) if task is not None else None
        if episode is None:
            return None
        detail = f"it kept the loop of its process for {limit_s:g} s without awaiting anything:\n{stack}"
        return self._broken(episode, "call limit", detail)

    # --- one episode ----------------------------------------------------------------------------

    def _begin(self, begin: BeginEpisode) -> None:
        episode = Episode(
            begin,
            run=self._run_name,
            codec=self._codec,
            limits=self._limits,
            say=self._say,
            expired=self._expired,
            open_door=self._doors.open,
            roles=self._roles,
        )
        self._open[begin.episode] = episode
        episode.task = task = episode.loop.create_task(self._run(episode))
        self._tasks[task] = episode
        task.add_done_callback(self._tasks.pop)

    async def _run(self, episode: Episode) -> None:
        """Run an episode's code to its end and say how it ended."""
        running_in.set(episode.threads)
        chat = Chat.first(episode)
        word: EpisodeDone | EpisodeBroken
        try:
            word = await self._played(episode, chat)
        except RAISED as error:
            word = self._broken(episode, "raised", "".join(traceback.format_exception(error)))
        is_in_order = isinstance(word, EpisodeDone) and not episode.is_over
        if not episode.threads:
            for told in episode.endings:
                episode.loop.run_in_executor(None, told, is_in_order)
        if not episode.is_over:
            self._say(word)
            self._close(episode, is_running=bool(episode.threads or episode.endings))

    async def _played(self, episode: Episode, chat: Chat) -> EpisodeDone | EpisodeBroken:
        try:
            result = await self._called(episode, chat)
        except EpisodeTruncated:
            result = None
            # It ended with this, whatever its other branches did since.
            episode.is_truncated = True
        judged = await self._judge.judged(chat, episode.begin.row)
        return self._done(episode, result, judged)

    async def _called(self, episode: Episode, chat: Chat) -> Any:
        function, row = self._function, episode.begin.row
        if function.is_async:
            return await function.call(**function.arguments(chat, row))
        arguments = function.arguments(BlockingChat(chat, episode.loop), row)
        return await episode.call_in_thread(partial(function.call, **arguments))

    def _done(self, episode: Episode, result: Any, judged: float | None) -> EpisodeDone | EpisodeBroken:
        reward = episode.total if judged is None else judged + (episode.total or 0.0)
        if result is not None:
            try:
                reward = checked_reward(result) + (reward or 0.0)
            except ValueError as error:
                return self._broken(episode, "wrong result", f"it returned {result!r:.200}: {error}")
        return EpisodeDone(
            episode=episode.begin.episode,
            reward=reward,
            last_rewards=episode.last_rewards,
            values=episode.values,
            is_truncated=episode.is_truncated,
        )

    def _expired(self, episode: Episode, fault: LimitFault, limit_s: float) -> None:
        what = "first turn" if fault == "start limit" else "next turn"
        detail = f"its {what} did not come within {limit_s:g} s; its code is here:\n{_stack(episode)}"
        self._say(self._broken(episode, fault, detail))
        self._stop(episode)

    def _stop(self, episode: Episode) -> None:
        """End an episode whose code still runs."""
        self._close(episode, is_running=True)
        assert episode.task is not None, f"episode {episode.begin.episode} was never begun"
        episode.task.cancel()

    def _close(self, episode: Episode, *, is_running: bool) -> None:
        """Forget an episode; whatever of its code goes on has as long as a call to come to its end."""
        del self._open[episode.begin.episode]
        self._doors.close(episode)
        episode.close()
        if is_running:
            episode.loop.call_later(self._limits.call_limit_s, self._check_ended, episode)

    def _check_ended(self, episode: Episode) -> None:
        if episode.threads or not (episode.task is None or episode.task.done()):
            detail = self._function.hidden(_stack(episode))
            self._say(EpisodeStuck(episode=episode.begin.episode, detail=detail))

    def _broken(self, episode: Episode, reason: EpisodeFault, detail: str) -> EpisodeBroken:
        # The end names the exception and the line; what is cut is the way there.
        shown = self._function.hidden(detail)[-_DETAIL_CHARACTERS:]
        return EpisodeBroken(episode=episode.begin.episode, reason=reason, detail=shown)


def _stack(episode: Episode) -> str:
    """Where the code of an episode is: what its coroutine awaits, and its threads."""
    coroutine: Any = None if episode.task is None else episode.task.get_coro()
    lines: list[str] = []
    while (frame := getattr(coroutine, "cr_frame", None)) is not None:
        lines += traceback.format_stack(frame, limit=1)
        coroutine = coroutine.cr_await
    frames = sys._current_frames()
    for thread in tuple(episode.threads):
        lines += traceback.format_stack(frames.get(thread))
    return "".join(lines)
