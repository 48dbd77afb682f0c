"""Pools over the functions of `user_rewards.py`, and what to ask them."""

from pathlib import Path
from typing import Any

from dora_rl.envs.config import RewardConfig, ScoringConfig
from dora_rl.envs.data.rows import Prompt, Row
from dora_rl.envs.scoring.messages import Item, Per, ScoreRequest, ScoreResult
from dora_rl.envs.scoring.pool import ScorerPool

USER = Path(__file__).with_name("user_rewards.py")


def user(function: str, **choices: Any) -> RewardConfig:
    return RewardConfig(function=f"{USER}:{function}", **choices)


def scoring(*functions: str | RewardConfig, **choices: Any) -> ScoringConfig:
    rewards = tuple(user(f) if isinstance(f, str) else f for f in functions)
    return ScoringConfig(rewards=rewards, **{"processes": 1, "time_limit_s": 20.0} | choices)


def item(text: str, prompt: Prompt = "?", row: int = 0, **columns: Any) -> Item:
    ids = tuple(range(len(text)))
    return Item(row=Row(row=row, prompt=prompt, columns=columns), text=text, token_ids=ids)


def asked(number: int, *items: Item, per: Per = "trajectory") -> ScoreRequest:
    return ScoreRequest(request=number, per=per, items=items)


def answers(pool: ScorerPool, count: int) -> dict[int, ScoreResult]:
    """Exactly so many results, none of them twice."""
    results: dict[int, ScoreResult] = {}
    while len(results) < count:
        fresh = pool.poll(timeout_s=30.0)
        assert fresh, f"{count - len(results)} results never came"
        for result in fresh:
            assert result.request not in results, f"request {result.request} was answered twice"
            results[result.request] = result
    assert pool.num_pending == 0
    return results
