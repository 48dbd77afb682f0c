"""The functions of `user_rewards.py`, and what to ask them."""

from pathlib import Path
from typing import Any

from dora_rl.core.recipe.data import RewardConfig
from dora_rl.envs.data.rows import Prompt, Row
from dora_rl.envs.scoring.reward_messages import Item, Per, ScoreRequest

USER = Path(__file__).with_name("user_rewards.py")


def user(function: str, **choices: Any) -> RewardConfig:
    """A reward of the file; called for one trajectory unless it is said otherwise."""
    return RewardConfig(function=f"{USER}:{function}", **{"per": "trajectory"} | choices)


def item(text: str, prompt: Prompt = "?", row: int = 0, **columns: Any) -> Item:
    ids = tuple(range(len(text)))
    return Item(row=Row(row=row, prompt=prompt, columns=columns), text=text, token_ids=ids)


def asked(number: int, *items: Item, per: Per = "trajectory") -> ScoreRequest:
    return ScoreRequest(request=number, per=per, items=items)
