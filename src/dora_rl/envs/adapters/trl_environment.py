"""Environment classes as TRL's `environment_factory` takes them.

    class Game:
        def reset(self, **row): ...            # the row's columns; returns what is shown, or None
        def guess(self, number: int) -> str:   # every other public method is a tool
            "Guess a number. ..."
        def get_reward(self) -> float: ...     # or reward functions that take `environments`

The policy is asked again as long as it calls tools. Instances are made once and reset often. A method that
blocks runs in a thread, another one is awaited. `reset` gets a seed, the same for all members of a group,
where it takes one and the rows have none.
"""

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from dora_rl.core.errors import UserError
from dora_rl.core.named import load_named
from dora_rl.envs.adapters.first_messages import first_messages
from dora_rl.envs.adapters.global_random import OwnRandom
from dora_rl.envs.adapters.lent import LentEnvironments
from dora_rl.envs.data.rows import Row
from dora_rl.envs.episodes.chat import Chat
from dora_rl.envs.episodes.tools import Tool
from dora_rl.envs.episodes.turn import EpisodeTruncated

Factory = str | Callable[[], Any]
"""A class or function that makes an environment, or its name."""

_NO_TOOLS = ("reset", "get_reward")
_COLUMN = "environment"
"""The column that says which of several environments a row is for."""


class EnvironmentEpisode:
    """Plays an environment in TRL's form; an episode."""

    def __init__(
        self,
        environment: Factory | Mapping[str, Factory] | None = None,
        *,
        tools: Iterable[str | Tool] = (),
        swaps_random: bool = False,
        warm: int = 0,
    ) -> None:
        """`environment` is a class or function, its name, or several of them by the rows' column
        `environment`.

        `tools` are functions beside the environment's methods, or alone. `swaps_random` gives every episode
        the random numbers of the process for itself, for environments that draw from `random` or
        `numpy.random`. `warm` environments of each kind are made ahead in a process.
        """
        tools = tuple(tools)
        if environment is None and not tools:
            raise UserError(
                "there is neither an environment nor a tool", hint="name one: environment: file.py:Class"
            )
        given = environment if isinstance(environment, Mapping) else {"": environment or _Nothing}
        self._has_several = isinstance(environment, Mapping)
        self._environments = {
            name: LentEnvironments(_loaded(factory, "an environment"), warm=warm)
            for name, factory in given.items()
        }
        self._tools = tuple(_loaded(tool, "a tool") for tool in tools)
        self._swaps_random = swaps_random

    async def __call__(self, chat: Chat, row: Row) -> float | None:
        """Play one episode; returns the environment's own reward, if it has one."""
        environment = await self._chosen(row).lent(chat)
        chat.environment = environment
        own = OwnRandom(chat.task_rng.getrandbits(31)) if self._swaps_random else None
        shown = await chat.call(_prepared(own, _reset(environment)), **self._columns(chat, row, environment))
        methods = [_prepared(own, method) for method in _methods(environment)]
        try:
            turn = await chat.turn(first_messages(row.prompt, shown), tools=(*self._tools, *methods))
            while turn.tool_calls:
                turn = await chat.turn(await chat.use_tools(turn))
        except EpisodeTruncated:
            # What it has come to counts.
            pass
        judge = getattr(environment, "get_reward", None)
        reward: float | None = None if judge is None else await chat.call(_prepared(own, judge))
        return reward

    def _chosen(self, row: Row) -> LentEnvironments:
        name = str(row.columns.get(_COLUMN)) if self._has_several else ""
        if name not in self._environments:
            known = ", ".join(self._environments)
            raise ValueError(f"row {row.row} is for the environment '{name}', and there are: {known}")
        return self._environments[name]

    def _columns(self, chat: Chat, row: Row, environment: Any) -> dict[str, Any]:
        """What `reset` is called with: the columns that it takes, and a seed."""
        offered = dict(row.columns) if row.prompt is None else {"prompt": row.prompt, **row.columns}
        if self._has_several:
            offered.pop(_COLUMN, None)
        parameters = inspect.signature(environment.reset).parameters
        if "seed" in parameters:
            offered = {"seed": chat.task_rng.getrandbits(31)} | offered
        takes_all = any(each.kind is each.VAR_KEYWORD for each in parameters.values())
        return {name: value for name, value in offered.items() if takes_all or name in parameters}


class _Nothing:
    """The environment of tools that have none."""

    def reset(self) -> None:
        """Begin; there is nothing to be seen."""


def from_environment(
    environment: Factory | Mapping[str, Factory] | None = None,
    *,
    tools: Iterable[str | Tool] = (),
    swaps_random: bool = False,
    warm: int = 0,
) -> EnvironmentEpisode:
    """An episode that plays an environment class of TRL's form: `train(episode=from_environment(Game))`.

    `environment` makes an instance when it is called without arguments; several are told apart by the rows'
    column `environment`. `tools` are functions beside its methods. `swaps_random` is for environments that
    draw from `random` or `numpy.random`, so that all members of a group get the same draws. `warm` are made
    ahead in each process.
    """
    return EnvironmentEpisode(environment, tools=tools, swaps_random=swaps_random, warm=warm)


def _loaded(given: Any, what: str) -> Callable[..., Any]:
    found = load_named(given) if isinstance(given, str) else given
    if not callable(found):
        raise UserError(f"{given!r:.80} is not {what}", hint="name a class or a function: file.py:Name")
    return found  # type: ignore[no-any-return]


def _reset(environment: Any) -> Callable[..., Any]:
    reset = getattr(environment, "reset", None)
    if not callable(reset):
        raise TypeError(f"{type(environment).__name__} has no method reset, with which an episode begins")
    return reset  # type: ignore[no-any-return]


def _methods(environment: Any) -> Iterator[Tool]:
    """The public methods of an environment, which are tools."""
    # Of the class: of the instance, properties would be computed.
    for name, _ in inspect.getmembers(type(environment), inspect.isfunction):
        if not name.startswith("_") and name not in _NO_TOOLS:
            yield getattr(environment, name)


def _prepared(own: OwnRandom | None, function: Callable[..., Any]) -> Callable[..., Any]:
    if own is None or inspect.iscoroutinefunction(function):
        return function
    called = own.around(function)
    # As of a method, only the function behind it is remembered by whoever describes tools.
    called.__func__ = getattr(function, "__func__", function)  # type: ignore[attr-defined]
    return called
