"""Pools of reward workers over the functions of `user_rewards.py`, and what they answer."""

from typing import Any

from dora_rl.core.recipe.data import RewardConfig, ScoringConfig
from dora_rl.envs.scoring.reward_messages import ScoreResult
from dora_rl.launch.local import LocalHandle
from dora_rl.run.rewards.pool import ScorerPool

from ..envs.scored import user


def scoring(*functions: str | RewardConfig, **choices: Any) -> ScoringConfig:
    rewards = tuple(user(f) if isinstance(f, str) else f for f in functions)
    return ScoringConfig(rewards=rewards, **{"processes": 1, "time_limit_s": 20.0} | choices)


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


def pids(pool: ScorerPool) -> list[int]:
    """Of its processes, where they are of this machine."""
    handles = [worker.handle for worker in pool._workers]
    return [handle.pid for handle in handles if isinstance(handle, LocalHandle)]
