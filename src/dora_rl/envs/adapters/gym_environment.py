"""Environments with `reset` and `step`, played in words.

    observation, info = env.reset(seed=..., options=...)                           or the observation alone
    observation, reward, terminated, truncated, info = env.step(action)            or one `done` for both

What the environment shows is said to the policy, its answer is the action, and the reward of a step is the
reward of the turn. An answer from which no action can be read is told so, and takes a turn but no step.

An environment with the methods `snapshot() -> bytes` and `restore(bytes)` is restored after a crash; another
is reset, and plays the same steps again.
"""

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from itertools import count
from typing import Any

import msgspec

from dora_rl.core.errors import UserError
from dora_rl.core.keywords import keywords_of
from dora_rl.core.named import load_named
from dora_rl.envs.adapters.first_messages import first_messages
from dora_rl.envs.adapters.global_random import OwnRandom
from dora_rl.envs.adapters.lent import LentEnvironments, close
from dora_rl.envs.data.rows import Row
from dora_rl.envs.episodes.chat import Chat

_TAGGED = re.compile(r"<action>(.*?)</action>", re.DOTALL)
_NUMBER = re.compile(r"-?\d+")
_TRUNCATED, _INFO = 3, -1
"""Places in what `step` returns where it returns five values."""


class BadAction(Exception):
    """An answer that is no action; the message is for the policy."""


class GymEpisode:
    """Plays an environment with `reset` and `step`; an episode."""

    def __init__(
        self,
        make: str | Callable[..., Any],
        *,
        prompt: str = "",
        action: str | Callable[..., Any] | Sequence[str] = "auto",
        observation: str | Callable[..., Any] | None = None,
        max_steps: int | None = None,
        is_score: bool = False,
        bad_action_reward: float = 0.0,
        swaps_random: bool = False,
        warm: int = 0,
        check: str | Callable[[Any], bool] | None = None,
    ) -> None:
        """`make` makes an environment, from those columns of a row that it takes.

        One that it makes of nothing is reset and used again; one that it makes of a row is closed at the end.
        `prompt` is said before the first observation of rows without a prompt.

        `action` is how an answer becomes an action: `text` (what stands in `<action>` tags, or all of it),
        `number` (the last one), a list of names, of which the place in the list is the action, or a function
        of the text, whose ValueError is told to the policy; `auto` is `number` where the environment's action
        space has a number of actions, else `text`.

        `observation` is a function that words an observation and its info; left out, it is written as it is.
        `max_steps` ends an episode after so many answers. `is_score` says that `step` returns the score so
        far and not what the step added. `swaps_random` is for environments that draw from `random` or
        `numpy.random`: their calls then come one at a time in a process.

        `warm` environments a process are made ahead, where `make` takes nothing of a row; `check` says of one
        that waited whether it can still be used.
        """
        self._make = _function(make, "an environment")
        self._takes = keywords_of(self._make, "the environment", offered=("row", "seed"), options={})
        if warm and (self._takes.named or self._takes.takes_all):
            raise UserError(
                "environments that are made of a row cannot be made ahead",
                hint="give `make` no parameters; reset(options=...) is given the row's column `options`",
            )
        checked = None if check is None else _function(check, "a check of environments")
        self._lent = LentEnvironments(self._make, close, warm=warm, check=checked)
        self._prompt = prompt
        self._action = (
            action if not isinstance(action, str) or action in _WAYS else _function(action, "an action")
        )
        self._observation = None if observation is None else _function(observation, "an observation")
        self._max_steps = max_steps
        self._is_score = is_score
        self._bad_action_reward = bad_action_reward
        self._swaps_random = swaps_random

    async def __call__(self, chat: Chat, row: Row) -> float:
        """Play one episode; rewards are given step by step."""
        seed = int(row.columns.get("seed", chat.task_rng.getrandbits(31)))
        call = _caller(chat, OwnRandom(seed) if self._swaps_random else None)
        chat.environment = environment = await self._environment(chat, call, row, seed)
        if chat.restored is not None:
            begin, score, said, state = msgspec.msgpack.decode(chat.restored)
            await call(environment.restore, state)
        else:
            begin, score, said = 0, 0.0, await self._reset(environment, row, seed, call)
        for number in count(begin):
            if number == self._max_steps:
                break
            if number > begin and self._has_snapshots(environment):
                state = await call(environment.snapshot)
                await chat.snapshot(msgspec.msgpack.encode((number, score, said, state)))
            turn = await chat.turn(said)
            try:
                action = self._read(turn.text, environment)
            except BadAction as problem:
                chat.reward(self._bad_action_reward)
                said = f"error: {problem}"
                continue
            observation, reward, is_over, info = _step(await call(environment.step, action))
            chat.reward(reward - score if self._is_score else reward)
            score = reward
            if is_over:
                break
            said = self._worded(observation, info) or "(nothing happens)"
        return 0.0

    async def _reset(self, environment: Any, row: Row, seed: int, call: Callable[..., Any]) -> Any:
        """Reset an environment; returns what is said first."""
        first = await call(environment.reset, **await _reset_arguments(environment, row, seed, call))
        observation, info = first if _is_pair(first) else (first, {})
        return first_messages(row.prompt or self._prompt or None, self._worded(observation, info))

    def _has_snapshots(self, environment: Any) -> bool:
        """Whether an environment gives its state, and that is all there is: random numbers may be outside."""
        methods = [getattr(environment, name, None) for name in ("snapshot", "restore")]
        return all(map(callable, methods)) and not self._swaps_random

    async def _environment(self, chat: Chat, call: Callable[..., Any], row: Row, seed: int) -> Any:
        offered = {**row.columns, "row": row, "seed": seed}
        taken = self._takes.chosen(offered)
        if not taken:
            return await self._lent.lent(chat)
        environment = await call(self._make, **taken)
        chat.at_end(lambda is_in_order: close(environment))
        return environment

    def _worded(self, observation: Any, info: Any) -> str:
        if self._observation is not None:
            return str(self._observation(observation, info))
        return str(observation)

    def _read(self, text: str, environment: Any) -> Any:
        """The action that an answer means; raises BadAction where it is none."""
        if callable(self._action):
            try:
                return self._action(text)
            except ValueError as error:
                raise BadAction(str(error)) from error
        if not isinstance(self._action, str):
            return _named(text, self._action)
        num_actions = getattr(getattr(environment, "action_space", None), "n", None)
        if self._action == "number" or (self._action == "auto" and num_actions is not None):
            return _numbered(text, num_actions)
        return _tagged(text)


def from_gym(make: str | Callable[..., Any], **options: Any) -> GymEpisode:
    """An episode that plays an environment with `reset` and `step`: `train(episode=from_gym(make))`.

    `make` is called with those columns of a row that it takes. The options are those of `episode.function:
    gym`: prompt, action, observation, max_steps, is_score, bad_action_reward, swaps_random, warm, check.
    """
    return GymEpisode(make, **options)


_WAYS = ("auto", "text", "number")


def _function(given: Any, what: str) -> Callable[..., Any]:
    found = load_named(given) if isinstance(given, str) else given
    if not callable(found):
        raise UserError(f"{given!r:.80} makes no {what}", hint="name a function: file.py:function")
    return found  # type: ignore[no-any-return]


def _caller(chat: Chat, own: OwnRandom | None) -> Callable[..., Any]:
    async def call(function: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        return await chat.call(function if own is None else own.around(function), *arguments, **named)

    return call


async def _reset_arguments(environment: Any, row: Row, seed: int, call: Callable[..., Any]) -> dict[str, Any]:
    """What `reset` is called with; an environment of the old form is seeded by a method of its own."""
    parameters = inspect.signature(environment.reset).parameters
    takes_all = any(each.kind is each.VAR_KEYWORD for each in parameters.values())
    if "seed" in parameters or takes_all:
        options = row.columns.get("options")
        return {"seed": seed} | ({} if options is None else {"options": options})
    if callable(getattr(environment, "seed", None)):
        await call(environment.seed, seed)
    return {}


def _is_pair(value: Any) -> bool:
    return isinstance(value, tuple) and len(value) == 2 and isinstance(value[1], Mapping)


def _step(result: Any) -> tuple[Any, float, bool, Any]:
    """Observation, reward, whether it is over and info, of four or five values."""
    if not isinstance(result, tuple) or len(result) not in (4, 5):
        raise TypeError(f"step returned {result!r:.200}, not four or five values")
    is_over = bool(result[2]) or (len(result) == 5 and bool(result[_TRUNCATED]))
    return result[0], float(result[1]), is_over, result[_INFO]


def _tagged(text: str) -> str:
    found = _TAGGED.findall(text)
    action = str(found[-1] if found else text).strip()
    if not action:
        raise BadAction("the answer is empty; write an action")
    return action


def _numbered(text: str, num_actions: int | None) -> int:
    found = _NUMBER.findall(_tagged(text))
    limit = "" if num_actions is None else f" from 0 to {num_actions - 1}"
    if not found or (num_actions is not None and not 0 <= int(found[-1]) < num_actions):
        raise BadAction(f"the answer is no action; write a number{limit}")
    return int(found[-1])


def _named(text: str, names: Sequence[str]) -> int:
    """The place of the name that an answer is, or of the one that it names last."""
    said = _tagged(text).lower()
    places = [(said.rfind(name.lower()), len(name), place) for place, name in enumerate(names)]
    begin, _, place = max(places)
    if begin < 0:
        raise BadAction(f"the answer is no action; write one of: {', '.join(names)}")
    return place
