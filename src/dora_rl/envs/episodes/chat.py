"""The chat that an episode is given: turns, forks, side effects, rewards.

A chat is a place in an episode, not a sequence of tokens: where its next turn cannot extend the tokens of its
branch (other tools, thinking that is stripped), it goes on in a new branch.
"""

import inspect
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import msgspec

from dora_rl.envs.chat.codec import Codec
from dora_rl.envs.chat.messages import Message, Said, ToolSchema, as_messages
from dora_rl.envs.episodes.branch import Branch
from dora_rl.envs.episodes.episode import Episode
from dora_rl.envs.episodes.episode_messages import (
    OnceAsked,
    OnceDone,
    OnceRecorded,
    OnceRun,
    RoleAsked,
    RoleSaid,
    TurnAsked,
)
from dora_rl.envs.episodes.role import RoleChat, find_player
from dora_rl.envs.episodes.snapshot import SNAPSHOT, read_snapshot, restore_episode, taken_snapshot
from dora_rl.envs.episodes.tools import Tool, ToolBox
from dora_rl.envs.episodes.turn import Turn


class Chat:
    """One conversation of an episode with the policy."""

    def __init__(self, episode: Episode, branch: Branch) -> None:
        """`branch` is where the conversation stands; episodes are given their chat, and do not make one."""
        episode.opened(branch.number)
        self._episode = episode
        self._branch = branch
        self._tools = ToolBox(())
        self._is_asking = False
        self._is_first = False
        self.restored: bytes | None = None
        """The state that was last given to `snapshot`, where an episode goes on from it after a crash."""
        self.environment: Any = None
        """What the policy acts on, if the episode says so: reward functions get it as `environments`."""
        self.task_rng = episode.task_rng(branch.number)
        """Random numbers that are the same for all members of a group: for drawing the task."""
        self.rng = episode.rng(branch.number)
        """Random numbers of this member's own."""

    @classmethod
    def first(cls, episode: Episode) -> "Chat":
        """The chat that an episode is given: at its beginning, or where its last snapshot was taken."""
        if episode.begin.snapshot is None:
            chat = cls(episode, Branch())
        else:
            snapshot = read_snapshot(episode.begin.snapshot)
            restore_episode(episode, snapshot)
            chat = cls(episode, snapshot.branch)
            chat._tools = ToolBox(snapshot.tools)
            chat.restored = snapshot.state
            chat.rng.setstate(snapshot.rng)
            chat.task_rng.setstate(snapshot.task_rng)
        chat._is_first = True
        return chat

    async def turn(
        self,
        *messages: Said,
        tools: Iterable[Tool | ToolSchema] | None = None,
        max_tokens: int | None = None,
        stop: Iterable[str] = (),
    ) -> Turn:
        """Say something and await the policy's answer; raises EpisodeTruncated where there is none any more.

        A first turn to which nothing is said begins with the row's prompt. `tools` are Python functions, or
        schemas of functions in OpenAI's form; left out, they stay what they were. The turn ends where one of
        the strings in `stop` is said, which stays in it.
        """
        if self._is_asking:
            raise RuntimeError("a chat takes one turn at a time: fork it for another beside")
        self._is_asking = True
        try:
            if tools is not None:
                self._tools = ToolBox(tools)
            return await self._turn(as_messages(messages), max_tokens, tuple(stop))
        finally:
            self._is_asking = False

    def fork(self) -> "Chat":
        """A second chat that goes on from the same point: both share what was said so far."""
        forked = Chat(self._episode, self._branch.forked())
        forked._tools = self._tools
        return forked

    def fresh(self, *messages: Said, trains: bool = True) -> "Chat":
        """A chat that begins with these messages and nothing else: a sub-agent, or a history made shorter.

        With `trains=False` nothing the policy says in it is trained on.
        """
        return Chat(self._episode, self._branch.fresh(as_messages(messages), is_trained=trains))

    def at(self, branch: Branch) -> "Chat":
        """A chat that stands in another branch of the episode."""
        return Chat(self._episode, branch)

    @property
    def branch(self) -> Branch:
        """Where the conversation stands."""
        return self._branch

    def role(self, name: str, *messages: Said) -> RoleChat:
        """A conversation with a role of the recipe that begins with these messages; it is not trained.

        The role is the assistant of that conversation: what the policy said is told to it as a user's text.
        """
        player = find_player(name, self._episode.roles)
        return RoleChat(self.fresh(trains=False), player, as_messages(messages))

    def reward(self, value: float) -> None:
        """Give a reward for the turn just taken; rewards add up, with what the episode returns."""
        if not self._branch.has_begun:
            raise RuntimeError("a reward is for a turn, and this chat has taken none: return it instead")
        self._episode.check_open()
        self._episode.give_reward(self._branch.number, value)

    def log_metric(self, name: str, value: float) -> None:
        """Note a value of this episode under a name, beside its reward."""
        self._episode.values[str(name)] = float(value)

    async def once(self, key: str, effect: Callable[[str], Any]) -> Any:
        """The value of a side effect that is not had again when the episode is begun again after a crash.

        `effect` is called with an idempotency key, which is the same if the crash came before its value was
        durable and it has to be called again. It may be `async`; else it is called in a thread. Its value is
        plain data, and comes back as it was written down: tuples as lists.
        """
        asked, recorded = await self.once_asked(key)
        if recorded is None:
            recorded = await self.once_done(asked, await self.call(effect, self.once_key(asked)))
        return msgspec.msgpack.decode(recorded.value)

    async def snapshot(self, state: bytes) -> None:
        """Have the environment's state written down: after a crash the episode goes on here.

        It is then called with a chat that stands where this one does, and whose `restored` is the state; the
        turns before are not replayed. Only for the chat that the episode was given, after its first turn, and
        while no other chat of the episode asks for anything.
        """
        branch = self._branch
        if not self._is_first:
            raise RuntimeError("a fork or a fresh chat has no snapshots: take one of the episode's own chat")
        if not branch.has_begun:
            raise RuntimeError("a snapshot is taken after a turn: before it there is nothing to be restored")
        self._episode.check_alone()
        number = branch.next_operation()
        done = OnceDone(
            episode=self._episode.begin.episode,
            branch=branch.number,
            number=number,
            key=SNAPSHOT,
            value=taken_snapshot(self._episode, branch, state, self.rng, self.task_rng),
        )
        await self._episode.ask_once(done)

    async def use_tools(self, turn: Turn) -> list[Message]:
        """Call the functions that a turn called, of those given as `tools`; returns what to say next.

        Whatever goes wrong, an unknown tool, bad arguments or an exception, is text for the policy.
        """
        return [await self._tools.answer(call, self.call) for call in turn.tool_calls]

    async def call(self, function: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        """The value of a function that may block: an `async` one is awaited, another called in a thread."""
        if inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__):
            return await function(*arguments, **named)
        value = await self._episode.call_in_thread(lambda: function(*arguments, **named))
        return await value if isinstance(value, Awaitable) else value

    def at_end(self, told: Callable[[bool], None]) -> None:
        """Have a function called in a thread once the episode is over and judged, and none of its code runs.

        It is told whether the episode ended in order: otherwise what the episode used is not to be used
        again.
        """
        self._episode.endings.append(told)

    @property
    def messages(self) -> list[Message]:
        """All that was said in this chat so far, in OpenAI's form."""
        return list(self._branch.messages)

    # --- the same over HTTP ---------------------------------------------------------------------

    @property
    def base_url(self) -> str:
        """The URL at which this chat goes on for programs that know OpenAI's interface, with `api_key`."""
        return self._episode.door(self).base_url

    @property
    def api_key(self) -> str:
        """The key to `base_url`: this episode's alone, and of no use when it is over."""
        return self._episode.door(self).api_key

    @property
    def conversations(self) -> list[list[Message]]:
        """What was said over HTTP, by branch, in the order in which branches began."""
        return [list(each) for each in self._episode.door(self).turns.conversations.values()]

    @property
    def is_truncated(self) -> bool:
        """Whether the last turn that was asked for was refused."""
        return self._episode.is_truncated

    # --- parts that a blocking chat shares ------------------------------------------------------

    @property
    def tools(self) -> ToolBox:
        """The tools that the policy was last given in this chat."""
        return self._tools

    async def once_asked(self, key: str) -> tuple[OnceAsked, OnceRecorded | None]:
        """Ask the run for the value of a side effect; None if it is to be had now."""
        branch = self._branch
        asked = OnceAsked(
            episode=self._episode.begin.episode,
            branch=branch.number,
            number=branch.next_operation(),
            key=key,
        )
        answer = await self._episode.ask_once(asked)
        return asked, None if isinstance(answer, OnceRun) else answer

    async def once_done(self, asked: OnceAsked, value: Any) -> OnceRecorded:
        """Have the value of a side effect written down."""
        done = OnceDone(
            episode=asked.episode,
            branch=asked.branch,
            number=asked.number,
            key=asked.key,
            value=msgspec.msgpack.encode(value),
        )
        recorded = await self._episode.ask_once(done)
        assert isinstance(recorded, OnceRecorded), f"the value of '{asked.key}' was said, not {recorded}"
        return recorded

    async def role_said(self, asked: RoleAsked) -> RoleSaid:
        """Have a version that plays a role take its turn."""
        return await self._episode.ask_role(asked)

    @property
    def codec(self) -> Codec:
        """Messages to token ids and back, as the model writes them."""
        return self._episode.codec

    def once_key(self, asked: OnceAsked) -> str:
        """The idempotency key of a side effect."""
        return self._episode.idempotency_key(asked.branch, asked.number, asked.key)

    # --- a turn ---------------------------------------------------------------------------------

    async def _turn(self, said: list[Message], max_tokens: int | None, stop: tuple[str, ...]) -> Turn:
        episode = self._episode
        episode.check_turn(self._branch.number)
        said = said or self._first_words()
        branch, added = self._extended(said)
        number, reward = branch.next_operation(), episode.last_rewards.pop(branch.number, None)
        if reward is not None:
            episode.told_rewards.append((branch.number, number, reward))
        asked = TurnAsked(
            episode=episode.begin.episode,
            branch=branch.number,
            number=number,
            tokens=tuple(added) if branch.has_begun else (*branch.ids, *added),
            is_new=not branch.has_begun,
            max_tokens=max_tokens,
            stop=stop,
            reward=reward,
            is_trained=branch.is_trained,
        )
        self._branch, branch.has_begun = branch, True
        taken = await episode.ask_turn(asked)
        parsed = episode.codec.parse(taken.tokens)
        branch.ids.extend(added)
        branch.ids.extend(taken.tokens)
        branch.messages += [*said, parsed.message]
        return Turn(
            text=parsed.text,
            thinking=parsed.thinking,
            tool_calls=parsed.tool_calls,
            message=parsed.message,
            finish="stop" if taken.finish == "stop" else "length",
            tokens=taken.tokens,
        )

    def _first_words(self) -> list[Message]:
        """What is said in a first turn to which the episode says nothing: the row's prompt."""
        if self._branch.ids:
            raise ValueError("nothing is said to the policy: only a first turn may go without a message")
        if self._branch.messages:
            return []
        prompt = self._episode.begin.row.prompt
        if prompt is None:
            raise ValueError("nothing is said to the policy, and the row has no prompt: say what to do")
        return as_messages([prompt])

    def _extended(self, said: list[Message]) -> tuple[Branch, list[int]]:
        """The branch of the next turn, a new one where this one cannot be extended, and the ids to append."""
        branch, codec, tools = self._branch, self._episode.codec, self._tools.schemas
        if branch.ids:
            added = codec.extend(branch.ids, said, tools) if tools == branch.tools else None
            if added is not None:
                return branch, added
            branch = branch.fresh(branch.messages, is_trained=branch.is_trained)
            self._episode.opened(branch.number)
        branch.tools = tools
        return branch, codec.begin([*branch.messages, *said], tools)
