"""One machine: which of its GPUs generate, which train, and whether those that train generate in between.

    step >= T_train(r)                              r GPUs train
    step >= T_generate / (g - r)                    and the others generate,
    step >= (T_generate + r * T_train(r)) / g       or all generate, but for r while a step is trained
    step >= (T_longest + T_train(r)) / (S + 1)      a straggler makes its deadline

T_generate is what one GPU would need for a batch. Where generating and training take turns anyway, a step is
the sum of both.
"""

from collections.abc import Iterable

from dora_rl.control.schedules import make_schedule
from dora_rl.core.recipe import Recipe
from dora_rl.core.record import Record
from dora_rl.costs.hardware import Gpu
from dora_rl.costs.lengths import longest_wait_s, moments, tokens_per_trajectory
from dora_rl.costs.limit import instance_tokens_per_s
from dora_rl.costs.rollout import RolloutCost, fits
from dora_rl.costs.shapes import Shape
from dora_rl.costs.training import TrainCost

_CLOSE = 1.05
"""Predictions this close are equal: the simpler division is the better one."""


class Division(Record, frozen=True):
    """One way to use the GPUs of a machine."""

    ranks: int
    """GPUs that train."""
    is_shared: bool
    """Those that train also generate, and pause while they train."""
    step_s: float


def divisions(
    recipe: Recipe, shape: Shape, gpu: Gpu, num_gpus: int, *, ranks: Iterable[int], shared: Iterable[bool]
) -> list[Division]:
    """Every division of these kinds, the best first; none where a GPU does not hold the model."""
    rollout = RolloutCost(
        gpu=gpu,
        shape=shape,
        costs=recipe.simulation.costs,
        gpus=1,
        memory_share=recipe.cluster.memory_share,
    )
    if not fits(rollout, recipe):
        return []
    training = TrainCost(gpu=gpu, shape=shape, costs=recipe.simulation.costs, batch=recipe.batch)
    found = [
        Division(ranks=r, is_shared=s, step_s=_step_s(recipe, rollout, training, num_gpus, r, is_shared=s))
        for r in ranks
        for s in shared
        if s or r < num_gpus
    ]
    best_s = min((each.step_s for each in found), default=0.0)
    return sorted(found, key=lambda each: _rank(each, best_s))


def _rank(division: Division, best_s: float) -> tuple[float, bool, bool, int]:
    """Of equals, the one with GPUs of its own for either; a trainer in one piece, or else in the most.

    Simulated (`docs/log.md`), what is equal by these bounds is best where all train together.
    """
    step_s, ranks = division.step_s, division.ranks
    return (best_s if step_s <= _CLOSE * best_s else step_s, division.is_shared, ranks > 1, -ranks)


def _step_s(
    recipe: Recipe, rollout: RolloutCost, training: TrainCost, num_gpus: int, ranks: int, *, is_shared: bool
) -> float:
    m, max_staleness = moments(recipe.task), make_schedule(recipe.control, recipe.batch).max_staleness
    generate_s = recipe.batch.trajectories * m.mean / instance_tokens_per_s(rollout, recipe)
    tokens = recipe.batch.trajectories * tokens_per_trajectory(recipe.task)
    train_s = training.step_s(tokens, ranks) + training.publish_s(ranks)
    longest_s = m.longest * rollout.step_s(1, m.longest / 2) + longest_wait_s(recipe.task)
    num_others = num_gpus if is_shared else num_gpus - ranks
    if not max_staleness:
        return max(generate_s / num_others, longest_s) + train_s
    lent_s = ranks * train_s if is_shared else 0.0
    straggler_s = (longest_s + train_s) / (max_staleness + 1)
    return max(train_s, (generate_s + lent_s) / num_others, straggler_s)
