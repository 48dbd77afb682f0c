"""Prediction: how long a step takes, by the cost models alone.

    step >= T_train                             the trainer never waits
    step >= T_generate / occupancy              instances are never quite full
    step >= (T_longest + T_train) / (S + 1)     a straggler makes its deadline
    step >= B * T_group / (R - B)               Little's law: R groups, of which a batch waits finished

The greatest of them is the bottleneck. The longer a step, the emptier the instances and the faster they
decode, so T_longest and T_group depend on the step they bound: it is found by bisection.
"""

from functools import lru_cache
from math import ceil, exp

from dora_rl.core.recipe import ImaginedTask, Recipe
from dora_rl.core.record import Record
from dora_rl.costs.length_moments import longest_wait_s, moments, quantile
from dora_rl.costs.limit import DeviceSplit
from dora_rl.costs.rollout import rollout_cost

_OCCUPANCY = 0.77
"""Share of full speed that instances reach: older versions drain, and KV waits for its request to grow."""
_GRID = 512
_HALVINGS = 10


class Prediction(Record, frozen=True):
    """The bounds on a step, and the smallest R with which admission does not hold it up."""

    train_s: float
    generate_s: float
    straggler_s: float
    active_groups: int
    step_s: float


def predict(recipe: Recipe, split: DeviceSplit, max_staleness: int) -> Prediction:
    """Predict the bounds on a step for a division of the devices under the bound `max_staleness`."""
    busy_s = max(split.train_s, split.generate_s / _OCCUPANCY)
    low_s, high_s = busy_s, max(busy_s, _bound_s(recipe, split, max_staleness, busy_s))
    for _ in range(_HALVINGS):
        middle_s = (low_s + high_s) / 2
        if _bound_s(recipe, split, max_staleness, middle_s) > middle_s:
            low_s = middle_s
        else:
            high_s = middle_s
    batch = recipe.batch.groups
    needed = batch + ceil(batch * _group_s(recipe, split, high_s) / high_s)
    return Prediction(
        train_s=split.train_s,
        generate_s=split.generate_s / _OCCUPANCY,
        straggler_s=_straggler_s(recipe, split, max_staleness, high_s),
        active_groups=min((max_staleness + 1) * batch, needed),
        step_s=high_s,
    )


def _bound_s(recipe: Recipe, split: DeviceSplit, max_staleness: int, step_s: float) -> float:
    """The shortest step that stragglers and the greatest possible R allow, if steps took `step_s`."""
    admission_s = _group_s(recipe, split, step_s) / max_staleness if max_staleness else 0.0
    return max(_straggler_s(recipe, split, max_staleness, step_s), admission_s)


def _straggler_s(recipe: Recipe, split: DeviceSplit, max_staleness: int, step_s: float) -> float:
    longest_s = moments(recipe.task).longest * _decode_s(recipe, split, step_s)
    return (longest_s + longest_wait_s(recipe.task) + split.train_s) / (max_staleness + 1)


def _group_s(recipe: Recipe, split: DeviceSplit, step_s: float) -> float:
    """Seconds from a group's start until its longest member ends."""
    tokens = _longest_member(recipe.task, recipe.batch.group_size)
    turns = recipe.task.turns
    waits_s = (turns.mean_turns - 1.0) * turns.latency_s * exp(turns.latency_sigma**2 / 2)
    return tokens * _decode_s(recipe, split, step_s) + waits_s


def _decode_s(recipe: Recipe, split: DeviceSplit, step_s: float) -> float:
    """Seconds of a decode step on instances that a step of `step_s` keeps busy."""
    cost, context = rollout_cost(recipe, split.tensor_parallel), moments(recipe.task).mean_context
    full = min(recipe.cluster.slots, cost.kv_tokens() / context)
    batch = max(1.0, full * min(1.0, split.generate_s / step_s))
    return cost.step_s(batch, batch * context)


@lru_cache(maxsize=64)
def _longest_member(task: ImaginedTask, group_size: int) -> float:
    """Expected tokens of the longest member of a group, members taken as independent."""
    shares = ((i + 0.5) / _GRID for i in range(_GRID))
    return sum(quantile(task.lengths, u ** (1.0 / group_size)) for u in shares) / _GRID
