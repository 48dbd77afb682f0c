"""Search: every way to divide the devices, ranked by prediction.

Fast enough to be asked before each simulation that leaves its split open.
"""

from collections.abc import Iterable

from msgspec.structs import replace

from dora_rl.control.schedules import make_schedule
from dora_rl.core.errors import ConfigError
from dora_rl.core.recipe import Recipe
from dora_rl.core.record import Record
from dora_rl.costs.gpu_memory import fewest_training_gpus, versions_that_fit
from dora_rl.costs.limit import DeviceSplit, in_turn, split_times
from dora_rl.costs.rollout import instance_sizes
from dora_rl.sim.plan.choice import Choice
from dora_rl.sim.plan.predict import Prediction, predict

_COLOCATED = ("sync", "partial")
"""Schedules under which generating and training take turns on the same devices anyway."""
_MOST_SPLITS = 128
_CLOSE = 1.01
"""Ratio of step times up to which predictions are equal: the less stale choice is then better."""


class Candidate(Record, frozen=True):
    """One choice and its predicted step."""

    choice: Choice
    prediction: Prediction


def candidates(recipe: Recipe, staleness: Iterable[int]) -> list[Candidate]:
    """Every choice that fits, with S from `staleness` and the R it needs; the most promising first."""
    found = [
        _candidate(recipe, split, bound)
        for bound in staleness
        for split in _splits(recipe)
        if _can_serve(recipe, split, bound + 1)
    ]
    if not found:
        raise _no_room(recipe)
    best_s = min(candidate.prediction.step_s for candidate in found)
    return sorted(found, key=lambda candidate: _rank(candidate, best_s))


def decide(recipe: Recipe) -> Recipe:
    """The recipe with its split and tensor parallelism filled in by prediction, where it leaves them out."""
    c = recipe.cluster
    if c.tensor_parallel is not None and (c.rollout_gpus is not None or c.elastic_gpus):
        return recipe
    best, *_ = candidates(recipe, [make_schedule(recipe.control, recipe.batch).max_staleness])
    control = recipe.control
    choice = replace(best.choice, max_staleness=control.max_staleness, active_groups=control.active_groups)
    return choice.applied_to(recipe)


def takes_turns(recipe: Recipe) -> bool:
    """Whether the same devices generate and train."""
    c = recipe.cluster
    if c.rollout_gpus is not None or c.elastic_gpus:
        return c.rollout_gpus is None
    return recipe.control.schedule in _COLOCATED or c.gpus == 1


def _rank(candidate: Candidate, best_s: float) -> tuple[float, int, int, float]:
    step_s, choice = candidate.prediction.step_s, candidate.choice
    is_close = step_s <= _CLOSE * best_s
    return (best_s if is_close else step_s, choice.max_staleness, choice.tensor_parallel, step_s)


def _candidate(recipe: Recipe, split: DeviceSplit, max_staleness: int) -> Candidate:
    prediction = predict(recipe, split, max_staleness)
    choice = Choice(
        rollout_gpus=split.rollout_gpus,
        tensor_parallel=split.tensor_parallel,
        max_staleness=max_staleness,
        takes_turns=takes_turns(recipe),
    )
    return Candidate(choice=choice, prediction=prediction)


def _splits(recipe: Recipe) -> list[DeviceSplit]:
    sizes = instance_sizes(recipe)
    if takes_turns(recipe):
        enough = recipe.cluster.gpus >= fewest_training_gpus(recipe)
        return [in_turn(recipe, size) for size in sizes if enough and recipe.cluster.elastic_gpus % size == 0]
    found = [split_times(recipe, gpus, size) for size in sizes for gpus in _rollout_gpus(recipe, size)]
    # A single instance cannot serve the newest version while it finishes an older one.
    several = [split for split in found if split.rollout_gpus > split.tensor_parallel]
    return several or found


def _can_serve(recipe: Recipe, split: DeviceSplit, num_versions: int) -> bool:
    """Whether memory allows the versions: shared placement puts every live one on every instance."""
    is_shared = recipe.control.placement == "shared"
    return not is_shared or versions_that_fit(recipe, split.tensor_parallel) >= num_versions


def _rollout_gpus(recipe: Recipe, size: int) -> list[int]:
    """Numbers of GPUs that instances of `size` may occupy beside the trainer."""
    c = recipe.cluster
    if c.rollout_gpus is not None:
        return [c.rollout_gpus] if c.rollout_gpus % size == c.elastic_gpus % size == 0 else []
    step = size * max(1, c.gpus // (size * _MOST_SPLITS))
    return list(range(step, c.gpus - fewest_training_gpus(recipe) + 1, step))


def _no_room(recipe: Recipe) -> ConfigError:
    c, needed = recipe.cluster, fewest_training_gpus(recipe)
    return ConfigError(
        f"{c.gpus} x {c.gpu} hold no instance of {recipe.model} beside a trainer that needs {needed} of them",
        hint="more GPUs, GPUs with more memory, a smaller model, or fewer versions at once",
    )
