"""Rewards that runs of the tests are judged by, in processes of their own."""

import os
import signal
from collections.abc import Sequence
from typing import Any


def even_reward(completion_ids: Sequence[Sequence[int]], **columns: Any) -> list[float]:
    """The share of even tokens: something a model can learn at once."""
    return [sum(token % 2 == 0 for token in ids) / len(ids) for ids in completion_ids]


def ranked_reward(completion_ids: Sequence[Sequence[int]], trainer_state: Any, log_extra: Any) -> list[float]:
    """How many members are shorter, of a whole group: 3 in training, 2 samples in evaluation."""
    assert len(completion_ids) in (2, 3), completion_ids
    assert 0 <= trainer_state.global_step <= trainer_state.max_steps == 3
    log_extra("length", [len(ids) for ids in completion_ids])
    return [0.01 * sum(len(b) < len(a) for b in completion_ids) for a in completion_ids]


def broken_reward(completion_ids: Sequence[Sequence[int]], **columns: Any) -> list[float]:
    """Raises, whatever it is given."""
    print("about to divide")
    return [1 / 0 for _ in completion_ids]


def deadly_reward(completion_ids: Sequence[Sequence[int]], **columns: Any) -> list[float]:
    """Kills whoever calls it."""
    os.kill(os.getpid(), signal.SIGKILL)
    return []


def silent_tracker(run: str, recipe: Any) -> Any:
    """A tracker that takes every row and keeps none."""
    return lambda values, step: None


def keyed_reward(completion_ids: Sequence[Sequence[int]], api_key: str, **columns: Any) -> list[float]:
    """As `even_reward`, for whoever has the key, except for a few it says the key about."""
    assert api_key == "sk-proj-4f9Tq2ZbXw81LmVe"
    if len(completion_ids[0]) % 5 == 0:
        raise ValueError(f"the key {api_key} is worn out")
    return even_reward(completion_ids)
