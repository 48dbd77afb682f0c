"""One machine: which of its GPUs generate, which train, and whether those that train generate in between.

    step >= T_train(r)                              r GPUs train
    step >= T_generate / (g - r)                    and the others generate,
    step >= (T_generate + r * T_train(r)) / g       or all generate, but for r while a step is trained
    step >= (T_longest + T_train(r)) / (S + 1)      a straggler makes its deadline

T_generate is what one GPU would need for a batch. Where generating and training take turns anyway, a step is
the sum of both.
"""

from collections.abc import Iterable

from msgspec.structs import replace

from dora_rl.control.schedules import make_schedule
from dora_rl.core.recipe import Recipe
from dora_rl.core.record import Record
from dora_rl.costs.hardware import GpuModel
from dora_rl.costs.length_moments import longest_wait_s, moments, tokens_per_trajectory
from dora_rl.costs.limit import instance_tokens_per_s
from dora_rl.costs.model_shapes import ModelShape
from dora_rl.costs.rollout import RolloutCost, fits
from dora_rl.costs.train_cost import TrainCost

_CLOSE = 1.05
"""Ratio of step times up to which predictions are equal: the simpler division is then better."""


class Division(Record, frozen=True):
    """One way to use the GPUs of a machine, with its predicted seconds a step."""

    ranks: int
    """Number of GPUs that train."""
    is_shared: bool
    """Whether the GPUs that train also generate, and pause while they train."""
    step_s: float


class Machine(Record, frozen=True):
    """The machine that is divided: its GPUs, and the model they have to hold."""

    gpu: GpuModel
    num_gpus: int
    shape: ModelShape
    """Shape of the model that is trained."""
    most_instances: int
    """Most GPUs that may generate."""


def divisions(
    recipe: Recipe, machine: Machine, *, ranks: Iterable[int], shared: Iterable[bool]
) -> list[Division]:
    """Every division of these kinds, the best first; empty where a GPU does not hold the model."""
    pairs = [(r, s) for r in ranks for s in shared if s or r < machine.num_gpus]
    found = [
        Division(ranks=r, is_shared=s, step_s=step_s)
        for r, s in pairs
        if (step_s := _step_s(recipe, machine, r, is_shared=s)) is not None
    ]
    best_s = min((each.step_s for each in found), default=0.0)
    return sorted(found, key=lambda each: _rank(each, best_s))


def _rank(division: Division, best_s: float) -> tuple[float, bool, bool, int]:
    """The sort key of a division, the best least.

    Of equals: GPUs of its own for either side; a trainer in one piece, or else in the most. Simulated
    (`docs/log.md`), what is equal by these bounds is best where all train together.
    """
    step_s, ranks = division.step_s, division.ranks
    return (best_s if step_s <= _CLOSE * best_s else step_s, division.is_shared, ranks > 1, -ranks)


def _step_s(recipe: Recipe, machine: Machine, ranks: int, *, is_shared: bool) -> float | None:
    costs, gpu = recipe.simulation.costs, machine.gpu
    training = TrainCost(gpu=gpu, shape=machine.shape, costs=costs, batch=recipe.batch)
    # All instances are alike, so those beside a trainer decide how much KV each has.
    taken = training.state_bytes / ranks if is_shared else 0.0
    rollout = RolloutCost(
        gpu=replace(gpu, memory_bytes=gpu.memory_bytes - taken),
        shape=machine.shape,
        costs=costs,
        gpus=1,
        memory_share=recipe.cluster.memory_share,
    )
    if not fits(rollout, recipe):
        return None
    m, max_staleness = moments(recipe.task), make_schedule(recipe.control, recipe.batch).max_staleness
    generate_s = recipe.batch.trajectories * m.mean / instance_tokens_per_s(rollout, recipe)
    tokens = recipe.batch.trajectories * tokens_per_trajectory(recipe.task)
    train_s = training.step_s(tokens, ranks) + training.publish_s(ranks)
    longest_s = m.longest * rollout.step_s(1, m.longest / 2) + longest_wait_s(recipe.task)
    num_apart = machine.num_gpus - ranks
    num_generating = min(machine.most_instances, machine.num_gpus if is_shared else num_apart)
    if not max_staleness:
        return max(generate_s / num_generating, longest_s) + train_s
    lent_s = max(0, num_generating - num_apart) * train_s
    straggler_s = (longest_s + train_s) / (max_staleness + 1)
    return max(train_s, (generate_s + lent_s) / num_generating, straggler_s)
