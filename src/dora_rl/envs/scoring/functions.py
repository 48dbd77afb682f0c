"""Reward functions by name, and what each can be called with.

A function gets every column and everything in `RESERVED` by keyword; one without `**kwargs` gets what it
names. What it cannot do without is known before the first call, so a misspelt column is an error at the
start and not at the first score.
"""

import inspect
from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from typing import Any

from msgspec import Struct

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
    is_async: bool
    keywords: Keywords

    @property
    def label(self) -> str:
        return self.config.label

    def arguments(self, offered: Mapping[str, Any]) -> dict[str, Any]:
        """The keyword arguments of a call: what the function takes of the offered values and its options."""
        return self.keywords.chosen({**offered, **self.config.options})

    @property
    def required(self) -> tuple[str, ...]:
        """Names of the columns that the function cannot be called without."""
        return self.keywords.required


def load_function(config: RewardConfig, objects: Objects | None = None) -> RewardFunction:
    """Import a reward function, or take it from the objects sent along, and check its signature."""
    _check_name(config)
    return reward_function(config, load_named(BUILT_IN.get(config.function, config.function), objects))


def reward_function(config: RewardConfig, call: Any) -> RewardFunction:
    """Check a function as the reward of a recipe's section: callable, its keywords, its options."""
    if not callable(call):
        raise UserError(
            f"the reward '{config.function}' is not a function", hint="name a function or a callable"
        )
    return RewardFunction(
        config=config,
        call=call,
        is_async=inspect.iscoroutinefunction(call) or inspect.iscoroutinefunction(type(call).__call__),
        keywords=keywords_of(call, f"the reward '{config.label}'", offered=RESERVED, options=config.options),
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
