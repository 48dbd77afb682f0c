"""The chat of an episode that blocks: the same words without `await`, from a thread of its own."""

import asyncio
import inspect
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, TypeVar

import msgspec

from dora_rl.envs.chat.messages import Message, Said, ToolSchema
from dora_rl.envs.episodes.chat import Chat
from dora_rl.envs.episodes.role import RoleChat
from dora_rl.envs.episodes.tools import Tool
from dora_rl.envs.episodes.turn import Turn

V = TypeVar("V")


class BlockingChat:
    """A Chat whose calls block until they are answered; its turns are taken in the loop of the process."""

    def __init__(self, chat: Chat, loop: asyncio.AbstractEventLoop) -> None:
        """`loop` is where `chat` lives; this may be called from any other thread."""
        self._chat = chat
        self._loop = loop
        self.task_rng = chat.task_rng
        """Random numbers that are the same for all members of a group: for drawing the task."""
        self.rng = chat.rng
        """Random numbers of this member's own."""

    @property
    def environment(self) -> Any:
        """What the policy acts on, if the episode says so: reward functions get it as `environments`."""
        return self._chat.environment

    @environment.setter
    def environment(self, environment: Any) -> None:
        self._chat.environment = environment

    @property
    def messages(self) -> list[Message]:
        """All that was said in this chat so far, in OpenAI's form."""
        return self._chat.messages

    def turn(
        self,
        *messages: Said,
        tools: Iterable[Tool | ToolSchema] | None = None,
        max_tokens: int | None = None,
        stop: Iterable[str] = (),
    ) -> Turn:
        """Say something and wait for the policy's answer, as `Chat.turn` does."""
        return self.wait(self._chat.turn(*messages, tools=tools, max_tokens=max_tokens, stop=stop))

    def fork(self) -> "BlockingChat":
        """A second chat that goes on from the same point."""
        return BlockingChat(self._chat.fork(), self._loop)

    def fresh(self, *messages: Said, trains: bool = True) -> "BlockingChat":
        """A chat that begins with these messages and nothing else."""
        return BlockingChat(self._chat.fresh(*messages, trains=trains), self._loop)

    def role(self, name: str, *messages: Said) -> "BlockingRole":
        """A conversation with a role of the recipe that begins with these messages; it is not trained."""
        return BlockingRole(self._chat.role(name, *messages), self)

    def reward(self, value: float) -> None:
        """Give a reward for the turn just taken; rewards add up, with what the episode returns."""
        self._chat.reward(value)

    def log_metric(self, name: str, value: float) -> None:
        """Note a value of this episode under a name, beside its reward."""
        self._chat.log_metric(name, value)

    def once(self, key: str, effect: Callable[[str], Any]) -> Any:
        """The value of a side effect that is not had again after a crash; it is had in this thread."""
        asked, recorded = self.wait(self._chat.once_asked(key))
        if recorded is None:
            value = _at_once(self._called(effect, self._chat.once_key(asked)))
            recorded = self.wait(self._chat.once_done(asked, value))
        return msgspec.msgpack.decode(recorded.value)

    @property
    def restored(self) -> bytes | None:
        """The state that was last given to `snapshot`, where an episode goes on from it after a crash."""
        return self._chat.restored

    def snapshot(self, state: bytes) -> None:
        """Have the environment's state written down: after a crash the episode goes on here."""
        self.wait(self._chat.snapshot(state))

    def use_tools(self, turn: Turn) -> list[Message]:
        """Call the functions that a turn called, in this thread; returns what to say next."""
        return [_at_once(self._chat.tools.answer(call, self._called)) for call in turn.tool_calls]

    async def _called(self, function: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        value = function(*arguments, **named)
        return self.wait(value) if inspect.iscoroutine(value) else value

    @property
    def base_url(self) -> str:
        """The URL at which this chat goes on for programs that know OpenAI's interface, with `api_key`."""
        return self._chat.base_url

    @property
    def api_key(self) -> str:
        """The key to `base_url`: this episode's alone, and of no use when it is over."""
        return self._chat.api_key

    def wait(self, coroutine: Coroutine[Any, Any, V]) -> V:
        """The value of a coroutine that runs in the loop of the process."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()


class BlockingRole:
    """A RoleChat whose calls block until they are answered."""

    def __init__(self, role: RoleChat, chat: BlockingChat) -> None:
        self._role = role
        self._chat = chat

    @property
    def messages(self) -> list[Message]:
        """All that was said in this conversation, as the role sees it."""
        return self._role.messages

    def turn(
        self,
        *messages: Said,
        tools: Iterable[Tool | ToolSchema] | None = None,
        max_tokens: int | None = None,
    ) -> Turn:
        """Say something to the role and wait for its answer, as `RoleChat.turn` does."""
        return self._chat.wait(self._role.turn(*messages, tools=tools, max_tokens=max_tokens))

    def use_tools(self, turn: Turn) -> list[Message]:
        """Call the functions that the role called; returns what to say next."""
        return self._chat.wait(self._role.use_tools(turn))

    def fork(self) -> "BlockingRole":
        """A second conversation that goes on from the same point."""
        return BlockingRole(self._role.fork(), self._chat)


def _at_once(coroutine: Coroutine[Any, Any, V]) -> V:
    """The value of a coroutine that awaits nothing."""
    try:
        coroutine.send(None)
    except StopIteration as done:
        value: V = done.value
        return value
    raise AssertionError(f"{coroutine} awaited something")
