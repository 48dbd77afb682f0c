"""Reward functions that judge a finished episode, in the process it was played in.

They are called as for single responses, with lists of length one: `prompts` and `completions` are messages,
and `environments` has what the episode left in `chat.environment`. What they give is added to what the
episode itself gave.
"""

from collections.abc import Sequence
from typing import Any

from dora_rl.core.errors import ConfigError
from dora_rl.core.named import Objects
from dora_rl.core.recipe.data import RewardConfig
from dora_rl.envs.data.rows import Row
from dora_rl.envs.episodes.chat import Chat
from dora_rl.envs.episodes.episode import checked_reward
from dora_rl.envs.scoring.functions import RewardFunction, load_function

_OFFERED = ("prompts", "completions", "environments", "log_metric")


class EpisodeJudge:
    """The reward functions of a run, for episodes that are over."""

    def __init__(self, functions: Sequence[RewardFunction] = ()) -> None:
        """Make an object of each class among the functions."""
        self._functions = [function.ready() for function in functions]

    async def judged(self, chat: Chat, row: Row) -> float | None:
        """The weighted sum of what the functions give, None where none applies; each value is logged."""
        if not self._functions:
            return None
        total: float | None = None
        offered = _offered(chat, row)
        for function in self._functions:
            value = _only(await chat.call(function.call, **function.arguments(offered)), function.label)
            if value is not None:
                chat.log_metric(function.label, value)
                total = (total or 0.0) + function.config.weight * value
        return total


def load_judging(config: RewardConfig, objects: Objects | None = None) -> RewardFunction:
    """Import a reward function of an episode and check what it takes."""
    if config.per == "group":
        raise ConfigError(
            f"the reward '{config.label}' is called per group, and the members of a group of episodes are "
            "judged each by itself",
            hint="leave 'per' out, or set it to trajectory",
        )
    return load_function(config, objects, offered=_OFFERED)


def _offered(chat: Chat, row: Row) -> dict[str, Any]:
    messages = chat.messages
    begun = next((place for place, each in enumerate(messages) if each["role"] == "assistant"), len(messages))
    return {
        **{name: [value] for name, value in row.columns.items()},
        "prompts": [messages[:begun]],
        "completions": [messages[begun:]],
        "environments": [chat.environment],
        "log_metric": chat.log_metric,
    }


def _only(values: Any, label: str) -> float | None:
    """The value for the one episode that a function was asked about."""
    plain = values.tolist() if hasattr(values, "tolist") else values
    if not isinstance(plain, list | tuple) or len(plain) != 1:
        raise ValueError(
            f"the reward '{label}' gave {values!r:.200} for one episode, not a list of one number"
        )
    return None if plain[0] is None else checked_reward(plain[0])
