"""Roles that are not trained: a user who is played by a model, a judge who is asked in the middle.

A role is played behind an endpoint of somebody else's, or by a frozen version on the run's own instances. Its
turns are side effects of the episode: each is written down before it counts, and an episode that is begun
again is answered with what was written, if it says the same. While a role has the word the episode waits as
for any environment, and no longer.
"""

from collections.abc import Iterable, Mapping
from hashlib import blake2s
from typing import TYPE_CHECKING, Any, Protocol

import msgspec
from msgspec import Struct

from dora_rl.core.environment_values import with_environment
from dora_rl.core.named import did_you_mean
from dora_rl.core.recipe.episodes import RoleSettings
from dora_rl.envs.chat.messages import Message, Said, ToolSchema, as_messages, plain_message
from dora_rl.envs.chat.tool_calls import ToolCall
from dora_rl.envs.chat_client import ChatClient
from dora_rl.envs.episodes.episode_messages import OnceAsked, RoleAsked
from dora_rl.envs.episodes.tools import Tool, ToolBox
from dora_rl.envs.episodes.turn import Turn

if TYPE_CHECKING:
    from dora_rl.envs.episodes.chat import Chat


class AskedRole(Struct, frozen=True, kw_only=True):
    """What a role is asked: its whole conversation, and where in the episode that is."""

    once: OnceAsked
    key: str
    """Its idempotency key, the same each time this turn is asked for."""
    messages: list[Message]
    context: tuple[int, ...]
    """The conversation as token ids, where a version plays the role."""
    tools: tuple[ToolSchema, ...]
    max_tokens: int | None


class Player(Protocol):
    """Whoever plays a role, for all episodes of a process."""

    name: str
    needs_ids: bool
    """Whether it is told the conversation as token ids."""

    async def answer(self, place: "Chat", asked: AskedRole) -> dict[str, Any]:
        """What the role says next, as plain data."""
        ...


class FrozenPlayer:
    """A version of the run that plays a role: generated beside the policy, and not trained."""

    needs_ids = True

    def __init__(self, name: str, settings: RoleSettings) -> None:
        self.name = name
        self._max_tokens = settings.max_tokens

    async def answer(self, place: "Chat", asked: AskedRole) -> dict[str, Any]:
        said = await place.role_said(
            RoleAsked(
                episode=asked.once.episode,
                branch=asked.once.branch,
                number=asked.once.number,
                role=self.name,
                tokens=asked.context,
                max_tokens=asked.max_tokens or self._max_tokens,
            )
        )
        message = plain_message(place.codec.parse(said.tokens, asked.tools).message)
        finish = "stop" if said.finish == "stop" else "length"
        return {"message": message, "finish": finish, "tokens": said.tokens}


class RolePlayer:
    """Somebody else's endpoint that plays a role."""

    needs_ids = False

    def __init__(self, name: str, settings: RoleSettings) -> None:
        looked_up = with_environment(
            {"api_key": settings.api_key, "options": settings.options}, f"role {name}"
        )
        assert settings.url is not None, f"the role {name} is played by a version"
        self.name = name
        self._body = {
            "model": settings.model,
            "max_tokens": settings.max_tokens,
            **looked_up["options"],
        }
        self._endpoint = ChatClient(
            settings.url,
            who=f"the role '{name}'",
            key=looked_up["api_key"],
            concurrent=settings.concurrent,
            retries=settings.retries,
            time_limit_s=settings.time_limit_s,
        )

    async def answer(self, place: "Chat", asked: AskedRole) -> dict[str, Any]:
        body = {**self._body, "messages": [_sent(each) for each in asked.messages]}
        if asked.tools:
            body["tools"] = list(asked.tools)
        if asked.max_tokens is not None:
            body["max_tokens"] = asked.max_tokens
        message, finish = await self._endpoint.ask(body, {"Idempotency-Key": asked.key})
        said = plain_message({**message, "role": "assistant"})
        return {"message": said, "finish": "length" if finish == "length" else "stop"}


def player_of(name: str, settings: RoleSettings) -> Player:
    """Who plays a role: the endpoint or the version of the recipe."""
    return RolePlayer(name, settings) if settings.version is None else FrozenPlayer(name, settings)


def find_player(name: str, players: Mapping[str, Player]) -> Player:
    """The player of a role; a ValueError where the recipe has none of that name."""
    player = players.get(name)
    if player is None:
        hint = (
            did_you_mean(name, list(players), "there are")
            if players
            else f"set roles.{name}.url or roles.{name}.version"
        )
        raise ValueError(f"the recipe has no role '{name}'; {hint}")
    return player


class RoleChat:
    """A conversation of an episode with a role: what the role says is neither drawn nor trained on here."""

    def __init__(self, place: "Chat", player: Player, messages: Iterable[Message]) -> None:
        """`place` numbers the turns of this role in the episode, and takes none of its own."""
        self._place = place
        self._player = player
        self._messages = list(messages)
        self._tools = ToolBox(())
        self._ids: list[int] = []
        """The conversation so far as a version saw it: its own turns are never rendered again."""
        self._ids_tools: tuple[ToolSchema, ...] = ()
        self._is_asking = False

    @property
    def messages(self) -> list[Message]:
        """All that was said in this conversation, as the role sees it: its own turns are the assistant's."""
        return list(self._messages)

    async def turn(
        self,
        *messages: Said,
        tools: Iterable[Tool | ToolSchema] | None = None,
        max_tokens: int | None = None,
    ) -> Turn:
        """Say something to the role and await its answer; raises EndpointFailed where none comes.

        Bare text is the user's, as to any model: the role is the assistant of its own conversation.
        """
        if self._is_asking:
            raise RuntimeError("a role takes one turn at a time: fork it for another beside")
        if tools is not None:
            self._tools = ToolBox(tools)
        said = [*self._messages, *as_messages(messages)]
        if not said:
            raise ValueError(f"nothing is said to the role '{self._player.name}'")
        self._is_asking = True
        try:
            turn = await self._turn(said, max_tokens)
        finally:
            self._is_asking = False
        self._messages = [*said, turn.message]
        return turn

    async def use_tools(self, turn: Turn) -> list[Message]:
        """Call the functions that the role called, of those given as `tools`; returns what to say next."""
        return [await self._tools.answer(call, self._place.call) for call in turn.tool_calls]

    def fork(self) -> "RoleChat":
        """A second conversation that goes on from the same point."""
        forked = RoleChat(self._place.fresh(trains=False), self._player, self._messages)
        forked._tools, forked._ids, forked._ids_tools = self._tools, list(self._ids), self._ids_tools
        return forked

    async def _turn(self, said: list[Message], max_tokens: int | None) -> Turn:
        place, schemas = self._place, self._tools.schemas
        context = self._context(said) if self._player.needs_ids else []
        once, recorded = await place.once_asked(f"role {self._player.name} {_digest(said, schemas)}")
        if recorded is None:
            asked = AskedRole(
                once=once,
                key=place.once_key(once),
                messages=said,
                context=tuple(context),
                tools=schemas,
                max_tokens=max_tokens,
            )
            recorded = await place.once_done(once, await self._player.answer(place, asked))
        answer = msgspec.msgpack.decode(recorded.value)
        self._ids, self._ids_tools = [*context, *answer.get("tokens", ())], schemas
        return _as_turn(answer)

    def _context(self, said: list[Message]) -> list[int]:
        """The conversation as ids: what was drawn stays as it was drawn, where it can be extended."""
        codec, schemas = self._place.codec, self._tools.schemas
        if self._ids and schemas == self._ids_tools:
            added = codec.extend(self._ids, said[len(self._messages) :], schemas)
            if added is not None:
                return [*self._ids, *added]
        return codec.begin(said, schemas)


def _digest(said: list[Message], tools: tuple[ToolSchema, ...]) -> str:
    """What a turn was asked with: an episode that is begun again must say the same."""
    plain = [[plain_message(each) for each in said], [dict(tool) for tool in tools]]
    return blake2s(msgspec.json.encode(plain, order="deterministic"), digest_size=8).hexdigest()


def _sent(message: Message) -> dict[str, Any]:
    """A message as endpoints take it: arguments of calls are JSON, and thinking stays at home."""
    plain = plain_message(message)
    plain.pop("reasoning_content", None)
    for call in plain.get("tool_calls", ()):
        arguments = call["function"]["arguments"]
        if not isinstance(arguments, str):
            call["function"]["arguments"] = msgspec.json.encode(arguments).decode()
    return plain


def _as_turn(recorded: dict[str, Any]) -> Turn:
    message = recorded["message"]
    return Turn(
        text=message["content"],
        thinking=message.get("reasoning_content", ""),
        tool_calls=tuple(_as_call(call) for call in message.get("tool_calls", ())),
        message=message,
        finish=recorded["finish"],
        tokens=tuple(recorded.get("tokens", ())),
    )


def _as_call(call: dict[str, Any]) -> ToolCall:
    function = call["function"]
    if not isinstance(function["arguments"], dict):
        problem = f"The arguments of {function['name']} are no JSON object."
        return ToolCall(id=call["id"], name=function["name"], problem=problem)
    return ToolCall(id=call["id"], name=function["name"], arguments=function["arguments"])
