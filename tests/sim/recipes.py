"""Small set-ups that run in a few hundredths of a second, and a random one for every seed."""

from random import Random
from typing import Any

from dora_rl.core.recipe import (
    Batch,
    Cluster,
    Control,
    Costs,
    Faults,
    ImaginedTask,
    Lognormal,
    Recipe,
    Simulation,
    Turns,
)

SCHEDULES = ("sync", "one_step_off", "steps_off", "partial", "counted", "async_ratio", "dora_onset", "dora")


def small(
    *,
    steps: int = 8,
    seed: int = 0,
    batch: dict[str, Any] | None = None,
    cluster: dict[str, Any] | None = None,
    lengths: dict[str, Any] | None = None,
    turns: dict[str, Any] | None = None,
    task: dict[str, Any] | None = None,
    faults: dict[str, Any] | None = None,
    costs: dict[str, Any] | None = None,
    estimates: str = "learned",
    **control: Any,
) -> Recipe:
    """Four instances that generate and four devices that train, 8 x 4 trajectories a step."""
    return Recipe(
        model="Qwen2.5-7B",
        steps=steps,
        seed=seed,
        batch=Batch(**({"groups": 8, "group_size": 4} | (batch or {}))),
        control=Control(**control),
        cluster=Cluster(
            **({"gpus": 8, "rollout_gpus": 4, "tensor_parallel": 1, "slots": 16} | (cluster or {}))
        ),
        task=ImaginedTask(
            rows=100,
            lengths=Lognormal(**({"median_tokens": 200.0, "max_tokens": 2048} | (lengths or {}))),
            turns=Turns(**(turns or {})),
            **(task or {}),
        ),
        simulation=Simulation(
            estimates=estimates,  # type: ignore[arg-type]
            faults=Faults(**({"restart_s": 5.0} | (faults or {}))),
            costs=Costs(**(costs or {})),
        ),
    )


def random_recipe(seed: int) -> Recipe:
    """Any schedule, size and trouble; rates of faults are such that a short run sees several."""
    rng = Random(seed)
    groups, group_size = rng.randint(1, 10), rng.randint(1, 6)
    gpus = rng.randint(2, 12)
    rollout = rng.randint(0, gpus - 1)
    elastic = rng.choice((0, 0, gpus - rollout)) if rollout else gpus
    return small(
        seed=seed,
        steps=rng.randint(1, 8),
        schedule=rng.choice(SCHEDULES),
        batch={"groups": groups, "group_size": group_size, "updates": min(groups, rng.randint(1, 3))},
        max_staleness=rng.randint(0, 4),
        active_groups=rng.choice((None, None, groups, 2 * groups, 4 * groups)),
        adapt_staleness=rng.random() < 0.2,
        stream=rng.random() < 0.4,
        placement=rng.choice(("auto", "exclusive", "shared")),
        rebalance=rng.random() < 0.8,
        refill=rng.random() < 0.8,
        kv_reuse=rng.random() < 0.8,
        queue_scheduling=rng.random() < 0.8,
        prompt_replication=rng.random() < 0.7,
        redundant_groups=rng.choice((0, 0, 2)),
        redundant_members=rng.choice((0, 0, group_size // 3)),
        long_first=rng.random() < 0.3,
        filter_zero_variance=group_size > 1 and rng.random() < 0.4,
        min_members=rng.randint(1, group_size),
        environment_tries=rng.randint(1, 3),
        estimates=rng.choice(("learned", "oracle", "half", "double")),
        cluster={
            "gpus": gpus,
            "rollout_gpus": rollout or None,
            "elastic_gpus": elastic,
            "gpus_per_node": rng.choice((2, 8)),
            "slots": rng.choice((2, 8, 64)),
            "max_versions": rng.randint(1, 4),
            "memory_share": rng.choice((0.26, 0.3, 0.9)),
        },
        lengths={
            "median_tokens": rng.choice((30.0, 200.0, 1000.0)),
            "sigma": rng.choice((0.0, 0.5, 1.5)),
            "sibling_correlation": rng.choice((0.0, 0.7)),
        },
        turns={
            "mean_turns": rng.choice((1.0, 1.0, 3.0)),
            "latency_s": rng.choice((0.1, 5.0)),
            "failure_rate": rng.choice((0.0, 0.1)),
        },
        task={"zero_variance_rate": rng.choice((0.0, 0.3)), "score_s": rng.choice((0.0, 0.5))},
        faults={
            "instance_deaths_per_hour": rng.choice((0.0, 0.02, 60.0, 200.0)),
            "restart_s": rng.choice((1.0, 30.0)),
            "hang_share": rng.choice((0.0, 0.5)),
            "slow_share": rng.choice((0.0, 0.3)),
            "trainer_losses_per_hour": rng.choice((0.0, 60.0)),
            "journal_lag_tokens": rng.choice((0, 64)),
        },
    )
