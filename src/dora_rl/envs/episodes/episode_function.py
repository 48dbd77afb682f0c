"""The function that an episode is, by its name: checked, and ready to be called for each episode."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from msgspec import Struct

from dora_rl.core.environment_values import hidden, with_environment
from dora_rl.core.errors import UserError
from dora_rl.core.keywords import Keywords, keywords_of
from dora_rl.core.named import Objects, did_you_mean, is_place, load_named
from dora_rl.envs.sandbox.sandbox import Sandbox, SandboxMode

EPISODES = {
    "agent": "dora_rl.envs.adapters.agent:AgentEpisode",
    "sandboxed_agent": "dora_rl.envs.adapters.agent:SandboxedAgentEpisode",
    "environment": "dora_rl.envs.adapters.trl_environment:EnvironmentEpisode",
    "gym": "dora_rl.envs.adapters.gym_environment:GymEpisode",
    "mcp": "dora_rl.envs.adapters.mcp_tools:McpEpisode",
    "textarena": "dora_rl.envs.adapters.textarena_games:TextArenaEpisode",
}
"""Episodes that are built in, by name: they play environments of others, which their options name."""

_OFFERED = ("chat", "row", "sandbox")


class EpisodeFunction(Struct, frozen=True, kw_only=True):
    """An episode's function, imported and checked."""

    name: str
    call: Callable[..., Any]
    """The function; of a class, the object that was made with the options."""
    is_async: bool
    """Whether it awaits its turns; otherwise it blocks, and needs a thread."""
    keywords: Keywords
    options: dict[str, Any]
    """Options that are arguments of each call, with values that they take from the environment."""
    written: dict[str, Any]
    """The options as the recipe has them."""
    sandbox: Sandbox | None = None
    """Where code that the model writes is run; None if the function does not take it."""

    def arguments(self, chat: Any, row: Any) -> dict[str, Any]:
        """The keyword arguments of one episode's call: what the function takes of chat, row and options."""
        chosen = self.keywords.chosen({"chat": chat, "row": row, **self.options})
        return chosen if self.sandbox is None else chosen | {"sandbox": self.sandbox}

    def hidden(self, text: str) -> str:
        """A text of this function's, such as a traceback, without values that come from the environment."""
        return hidden(text, self.written)


def load_episode(
    name: str,
    options: Mapping[str, Any],
    objects: Objects | None = None,
    *,
    sandbox: SandboxMode = "auto",
) -> EpisodeFunction:
    """Import the function of an episode and check that it can be called with a chat, a row and its options.

    A class is made once, with the options; its object is called for every episode of the process. One that
    takes a `sandbox` is refused where the system has none, unless it is to do without.
    """
    if name not in EPISODES and not is_place(name):
        raise UserError(
            f"there is no built-in episode '{name}'", hint=did_you_mean(name, list(EPISODES), "built in")
        )
    return episode_function(name, load_named(EPISODES.get(name, name), objects), options, sandbox=sandbox)


def episode_function(
    name: str, call: Any, options: Mapping[str, Any], *, sandbox: SandboxMode = "auto"
) -> EpisodeFunction:
    """Check an object as an episode's function, and make an object of a class."""
    what = f"the episode '{name}'"
    if not callable(call):
        raise UserError(f"{what} is not a function", hint="name a function that takes a chat and a row")
    values = with_environment(options, what)
    if isinstance(call, type):
        call, given = _made(call, what, name, options, values), {}
    else:
        given = dict(values)
    keywords = keywords_of(call, what, offered=_OFFERED, options={key: options[key] for key in given})
    if "chat" not in keywords.named and not keywords.takes_all:
        raise UserError(f"{what} takes no 'chat'", hint="write async def episode(chat, row)")
    if keywords.required:
        raise UserError(
            f"{what} needs '{keywords.required[0]}', which nothing gives it",
            hint=f"give it a default, or episode.options: {{{keywords.required[0]}: ...}}",
        )
    return EpisodeFunction(
        name=name,
        call=call,
        is_async=inspect.iscoroutinefunction(call) or inspect.iscoroutinefunction(type(call).__call__),
        keywords=keywords,
        options=given,
        written=dict(options),
        sandbox=Sandbox(mode=sandbox) if "sandbox" in keywords.named else None,
    )


def _made(kind: type, what: str, name: str, options: Mapping[str, Any], values: Mapping[str, Any]) -> Any:
    call = getattr(kind, "__call__", None)  # noqa: B004, it is the method that is looked at
    if not inspect.isfunction(call):
        raise UserError(f"{what} is a class without a method __call__", hint="give it one: (self, chat, row)")
    made_with = keywords_of(kind, what, offered=(), options=options)
    if made_with.required:
        raise UserError(
            f"{what} needs the option '{made_with.required[0]}'",
            hint=f"give it: episode.options: {{{made_with.required[0]}: ...}}",
        )
    try:
        return kind(**values)
    except UserError:
        raise
    except Exception as error:  # whatever a class of the user's raises
        raise UserError(
            hidden(f"{what} cannot be made: {type(error).__name__}: {error}", options),
            hint=f"make one by hand to see why: {name}, options {dict(options)}",
        ) from error
