"""A reward without meaning, for runs of prescribed lengths: groups differ, so every step moves weights."""

from collections.abc import Sequence
from typing import Any


def coin_reward(completion_ids: Sequence[Sequence[int]], **columns: Any) -> list[float]:
    """A reward of 1 or 0, as the sum of the tokens is odd or even."""
    return [float(sum(tokens) % 2) for tokens in completion_ids]
