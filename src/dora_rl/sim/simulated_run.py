"""One simulated run: a recipe in, a result out. Deterministic for a recipe."""

import gc
from collections.abc import Sequence

from dora_rl.control.plane import ControlPlane
from dora_rl.control.schedules import make_schedule
from dora_rl.core.history import Watcher
from dora_rl.core.recipe import Recipe
from dora_rl.core.record import Record
from dora_rl.costs.freshness_meter import Freshness, FreshnessMeter
from dora_rl.costs.limit import limit
from dora_rl.costs.rollout import rollout_cost
from dora_rl.costs.train_cost import train_cost
from dora_rl.envs.prompt_source import PromptSource
from dora_rl.sim.audit import Audit
from dora_rl.sim.faults import FaultInjector
from dora_rl.sim.feed import SimulatedPromptFeed
from dora_rl.sim.futures import Futures
from dora_rl.sim.oracle import make_estimates
from dora_rl.sim.simulated_engine import SimulatedEngine
from dora_rl.sim.simulated_trainer import SimulatedTrainer
from dora_rl.sim.truth import Truth
from dora_rl.sim.world import World


class Result(Record, frozen=True):
    """The result of one simulated run: times in seconds, shares from 0 to 1, counts."""

    schedule: str
    gpus: int
    rollout_gpus: int
    elastic_gpus: int
    tensor_parallel: int
    instances: int
    steps: int
    seed: int
    batch_groups: int
    group_size: int
    active_groups: int
    max_staleness: int
    step_time_s: float
    tokens_per_s: float
    limit_step_time_s: float | None
    """The zero-bubble limit; None where redundant work is aborted, for it counts every trajectory."""
    train_time_s: float
    rollout_only_fraction: float
    trainer_idle_fraction: float
    instance_idle_fraction: float
    staleness_mean: float
    """Mean without the first 2 (S + 1) and the last S + 1 steps; of all steps where no others are."""
    staleness_least: float | None
    """The least mean that these groups and publishes allow in the same steps; None where there are none."""
    staleness_max: int
    starved_s: float
    window_stall_s: float
    migrations: int
    kv_bytes_moved: int
    version_changes: int
    parked_requests: int
    instance_losses: int
    restarted_trajectories: int
    closed_trajectories: int
    discarded_tokens: int
    """Tokens that were generated for trajectories that no step trained on."""
    truncated_trajectories: int
    cut_trajectories: int
    """Episodes that were ended because the trainer waited for nothing but environments."""
    trained_trajectories: int
    lost_trajectories: int
    duplicated_trajectories: int
    mixed_version_trajectories: int
    inputs: int
    decisions: int

    @property
    def limit_s(self) -> float:
        """The zero-bubble limit of a run that aborts nothing."""
        assert self.limit_step_time_s is not None, "no limit where redundant groups are aborted"
        return self.limit_step_time_s

    @property
    def share_of_limit(self) -> float:
        return self.limit_s / self.step_time_s


def build_world(recipe: Recipe, source: PromptSource | None = None) -> World:
    """Build a recipe's fleet, trainer and control plane, ready to run; device counts must be decided.

    `source` chooses the rows; left out, the recipe names it.
    """
    c = recipe.cluster
    assert c.rollout_gpus is not None or c.elastic_gpus, "the split must be chosen before a run"
    assert c.tensor_parallel is not None
    cost = rollout_cost(recipe, c.tensor_parallel)
    fixed = (c.rollout_gpus or 0) // c.tensor_parallel
    elastic = c.elastic_gpus // c.tensor_parallel
    per_node = max(1, c.gpus_per_node // c.tensor_parallel)
    engines = [
        SimulatedEngine(i, cost.spec(recipe, node=i // per_node, elastic=i >= fixed), cost, 0, 0.0)
        for i in range(fixed + elastic)
    ]
    truth = Truth(recipe.task, recipe.seed)
    futures = Futures(recipe, truth)
    trainer = SimulatedTrainer(
        train_cost(recipe),
        gpus=c.gpus - (c.rollout_gpus or 0) - c.elastic_gpus,
        switch_s=recipe.simulation.costs.switch_s,
    )
    plane = ControlPlane(
        recipe.control,
        recipe.batch,
        steps=recipe.steps,
        estimates=make_estimates(recipe, cost, futures),
        episode=recipe.episode,
        frozen=recipe.frozen_versions,
    )
    feed = SimulatedPromptFeed(recipe, truth.prompt_tokens(), plane, source)
    return World(recipe, plane, engines, trainer, futures, truth, feed)


def simulate(recipe: Recipe, watchers: Sequence[Watcher] = ()) -> Result:
    """Run a recipe under virtual time and return the result, with the least staleness it allowed."""
    freshness = FreshnessMeter(make_schedule(recipe.control, recipe.batch).max_staleness)
    return run_world(build_world(recipe), [freshness.watch, *watchers], freshness=freshness)


def run_world(
    world: World, watchers: Sequence[Watcher] = (), *, freshness: FreshnessMeter | None = None
) -> Result:
    """Run a fresh world to its end, with faults and audit; `freshness` is one of its watchers."""
    recipe = world.recipe
    audit = Audit(
        batch_groups=recipe.batch.groups,
        group_size=recipe.batch.group_size,
        max_staleness=make_schedule(recipe.control, recipe.batch).staleness_limit,
    )
    world.watchers = [audit.watch, *world.feed.watchers, *watchers]
    FaultInjector(world, recipe.seed).arm()
    was_enabled = gc.isenabled()
    gc.disable()  # Records hold no cycles; walking a million of them again and again costs a third of a run.
    try:
        world.run()
    finally:
        if was_enabled:
            gc.enable()
    world.plane.check_integrity()
    assert not audit.violations, audit.violations[0]
    return summarize(world, audit, freshness=freshness.result() if freshness is not None else None)


def summarize(world: World, audit: Audit, *, freshness: Freshness | None) -> Result:
    recipe, plane = world.recipe, world.plane
    first, last = measured_steps(recipe)
    began = world.publishes[first - 1] if first else 0.0
    elapsed = world.publishes[last - 1] - began
    spans = world.train_spans[first:last]
    trained_s = sum(end - begin for begin, end in spans)
    staleness = plane.meters.staleness
    staleness_total, taken = sum(s * n for s, n in staleness.items()), sum(staleness.values())
    idle = 1.0 - trained_s / elapsed
    limits = limit(recipe, recipe.cluster.tensor_parallel or 1)
    return Result(
        schedule=recipe.control.schedule,
        gpus=recipe.cluster.gpus,
        rollout_gpus=recipe.cluster.rollout_gpus or 0,
        elastic_gpus=recipe.cluster.elastic_gpus,
        tensor_parallel=recipe.cluster.tensor_parallel or 1,
        instances=len(world.engines),
        steps=recipe.steps,
        seed=recipe.seed,
        batch_groups=recipe.batch.groups,
        group_size=recipe.batch.group_size,
        active_groups=plane.target.groups,
        max_staleness=make_schedule(recipe.control, recipe.batch).max_staleness,
        step_time_s=elapsed / (last - first),
        tokens_per_s=sum(world.tokens_trained[first:last]) / elapsed,
        limit_step_time_s=None if recipe.control.aborts else limits.step_s,
        train_time_s=trained_s / (last - first),
        rollout_only_fraction=idle,
        trainer_idle_fraction=idle,
        instance_idle_fraction=1.0 - world.busy_share(),
        staleness_mean=freshness.staleness_mean if freshness else staleness_total / taken,
        staleness_least=freshness.staleness_least if freshness else None,
        staleness_max=audit.worst_staleness,
        starved_s=plane.meters.starved_s,
        window_stall_s=plane.meters.window_stall_s,
        migrations=plane.meters.migrations,
        kv_bytes_moved=plane.meters.kv_bytes_moved,
        version_changes=plane.meters.version_changes,
        parked_requests=plane.meters.parked,
        instance_losses=plane.meters.instance_losses,
        restarted_trajectories=plane.meters.restarted_trajectories,
        closed_trajectories=sum(plane.ledger.outcomes.values()),
        discarded_tokens=plane.ledger.discarded_tokens,
        truncated_trajectories=plane.meters.truncated,
        cut_trajectories=plane.meters.cut,
        trained_trajectories=plane.ledger.num_committed,
        lost_trajectories=audit.lost(set(plane.ledger.groups)),
        duplicated_trajectories=audit.duplicated(),
        mixed_version_trajectories=plane.meters.mixed_trajectories + audit.mixed(),
        inputs=world.num_inputs,
        decisions=world.num_decisions,
    )


def measured_steps(recipe: Recipe) -> tuple[int, int]:
    """The steps that count: not those that fill the pipeline, nor those after the last admission."""
    first = min(recipe.simulation.warmup_steps, recipe.steps - 1)
    drain = min(make_schedule(recipe.control, recipe.batch).max_staleness, (recipe.steps - first) // 3)
    return first, recipe.steps - drain
