"""Reward functions by name, and what each can be called with.

A function gets every column and everything in `RESERVED` by keyword; one without `**kwargs` gets what it
names. What it cannot do without is known before the first call, so a misspelt column is an error at the
start and not at the first score.
"""

import inspect
from collections.abc import Callable, Collection, Iterable, Mapping
from difflib import get_close_matches
from functools import partial
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from dora_rl.core.environment_values import hidden, with_environment
from dora_rl.core.errors import UserError
from dora_rl.core.keywords import Keywords, keywords_of
from dora_rl.core.named import Objects, did_you_mean, is_place, load_named
from dora_rl.core.recipe.data import RewardConfig
from dora_rl.envs.data.rows import RESERVED
from dora_rl.envs.rewards import BUILT_IN
from dora_rl.envs.scoring.reward_messages import Needs


class RewardFunction(Struct, frozen=True, kw_only=True):
    """A reward function, imported and checked, ready to be called."""

    config: RewardConfig
    call: Callable[..., Any]
    """The function; or a class, of which an object is to be made before it is called."""
    is_async: bool
    keywords: Keywords
    options: dict[str, Any]
    """The options of the recipe, with values that it takes from the environment."""
    is_made: bool = False
    """Whether `call` is an object that was made with the options, which are then no arguments of a call."""

    @property
    def label(self) -> str:
        return self.config.label

    def arguments(self, offered: Mapping[str, Any]) -> dict[str, Any]:
        """The keyword arguments of a call: what the function takes of the offered values and its options."""
        return self.keywords.chosen({**offered, **({} if self.is_made else self.options)})

    def ready(self) -> "RewardFunction":
        """The function ready to be called: of a class, an object, which may load a model or open a client."""
        if not isinstance(self.call, type):
            return self
        try:
            return replace(self, call=self.call(**self.options), is_made=True)
        except UserError:
            raise
        except Exception as error:  # whatever a class of the user's raises
            raise UserError(
                self.hidden(f"the reward '{self.label}' cannot be made: {type(error).__name__}: {error}"),
                hint=f"make one by hand to see why: {self.config.function}, options {self.config.options}",
            ) from error

    def hidden(self, text: str) -> str:
        """A text of this function's, such as a traceback, without values that come from the environment."""
        return hidden(text, self.config.options)

    @property
    def required(self) -> tuple[str, ...]:
        """Names of the columns that the function cannot be called without."""
        return self.keywords.required


def load_function(
    config: RewardConfig, objects: Objects | None = None, offered: Collection[str] = RESERVED
) -> RewardFunction:
    """Import a reward function, or take it from the objects sent along, and check its signature.

    `offered` are the keywords that it can be called with beside the columns of the rows.
    """
    _check_name(config)
    call = load_named(BUILT_IN.get(config.function, config.function), objects)
    return reward_function(config, call, offered)


def reward_function(config: RewardConfig, call: Any, offered: Collection[str] = RESERVED) -> RewardFunction:
    """Check a function as the reward of a recipe's section: callable, its keywords, its options."""
    if not callable(call):
        raise UserError(
            f"the reward '{config.function}' is not a function", hint="name a function or a callable"
        )
    what = f"the reward '{config.label}'"
    if isinstance(call, type):
        return _of_class(config, call, what, offered)
    return RewardFunction(
        config=config,
        call=call,
        is_async=inspect.iscoroutinefunction(call) or inspect.iscoroutinefunction(type(call).__call__),
        keywords=keywords_of(call, what, offered=offered, options=config.options),
        options=with_environment(config.options, what),
    )


def _of_class(config: RewardConfig, kind: type, what: str, offered: Collection[str]) -> RewardFunction:
    """Check a class as a reward: made with the options, then called as a function would be."""
    call = getattr(kind, "__call__", None)  # noqa: B004, it is the method that is looked at
    if not inspect.isfunction(call):
        raise UserError(f"{what} is a class without a method __call__", hint="give it one, in TRL's form")
    made_with = keywords_of(kind, what, offered=(), options=config.options)
    if made_with.required:
        raise UserError(
            f"{what} needs the option '{made_with.required[0]}'",
            hint=f"give it: options: {{{made_with.required[0]}: ...}}",
        )
    return RewardFunction(
        config=config,
        call=kind,
        is_async=inspect.iscoroutinefunction(call),
        keywords=keywords_of(partial(call, None), what, offered=offered, options={}),
        options=with_environment(config.options, what),
    )


def check_columns(needs: Iterable[Needs], columns: Iterable[str]) -> None:
    """Raise a UserError where a reward function needs a column that the rows do not have."""
    known = list(columns)
    for need in needs:
        for name in need.columns:
            if name not in known:
                raise UserError(
                    f"the reward '{need.function}' needs a column '{name}', which the rows do not have",
                    hint=_column_hint(name, known),
                )


def _column_hint(name: str, known: list[str]) -> str:
    if f"{name}s" in RESERVED:
        return f"write '{name}s': a reward gets lists, of several responses at a time, and returns a list"
    near = get_close_matches(name, known, n=1)
    if not near:
        return did_you_mean(name, known, "the rows have")
    return f"did you mean '{near[0]}'? Then map it: columns: {{{name}: {near[0]}}}"


def _check_name(config: RewardConfig) -> None:
    if config.function not in BUILT_IN and not is_place(config.function):
        raise UserError(
            f"there is no built-in reward '{config.function}'",
            hint=did_you_mean(config.function, list(BUILT_IN), "built in"),
        )
