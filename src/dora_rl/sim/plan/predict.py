"""Prediction: how long a step takes, by the cost models alone.

    step >= T_train                             the trainer never waits
    step >= T_generate / occupancy              instances are never quite full
    step >= (T_longest + T_train) / (S + 1)     a straggler makes its deadline
    step >= B * T_group / (R - B)               Little's law: R groups, of which a batch waits finished

The greatest of them is the bottleneck. Good to a few per cent, and a million times as fast as a run.
"""

from functools import lru_cache
from math import ceil, exp

from dora_rl.core.recipe import Recipe, Task
from dora_rl.core.record import Record
from dora_rl.costs.lengths import moments, quantile
from dora_rl.costs.limit import Split
from dora_rl.costs.rollout import rollout_cost

_OCCUPANCY = 0.85
"""Share of full speed that instances reach: older versions drain, and KV waits for its request to grow."""
_GRID = 512


class Prediction(Record, frozen=True):
    """The four bounds on a step."""

    train_s: float
    generate_s: float
    straggler_s: float
    admission_s: float

    @property
    def step_s(self) -> float:
        return max(self.train_s, self.generate_s, self.straggler_s, self.admission_s)


def predict(recipe: Recipe, split: Split, max_staleness: int, active_groups: int) -> Prediction:
    """The bounds for one division of the devices, S and R."""
    straggler_s = split.longest_s * (recipe.control.max_staleness + 1) / (max_staleness + 1)
    return Prediction(
        train_s=split.train_s,
        generate_s=split.generate_s / _OCCUPANCY,
        straggler_s=straggler_s,
        admission_s=recipe.batch.groups
        * group_s(recipe, split)
        / max(1, active_groups - recipe.batch.groups),
    )


def needed_groups(recipe: Recipe, split: Split, max_staleness: int) -> int:
    """The smallest R at which admission is not what holds a step up."""
    batch = recipe.batch.groups
    step_s = max(split.train_s, split.generate_s / _OCCUPANCY)
    return min((max_staleness + 1) * batch, batch + ceil(batch * group_s(recipe, split) / step_s))


def group_s(recipe: Recipe, split: Split) -> float:
    """Seconds from a group's start until its longest member ends, on full instances."""
    cost, m = rollout_cost(recipe, split.tensor_parallel), moments(recipe.task)
    batch = min(recipe.cluster.slots, cost.kv_tokens() / m.mean_context)
    step_s = cost.step_s(batch, batch * m.mean_context)
    turns = recipe.task.turns
    waits_s = (turns.mean_turns - 1.0) * turns.latency_s * exp(turns.latency_sigma**2 / 2)
    return _longest_member(recipe.task, recipe.batch.group_size) * step_s + waits_s


@lru_cache(maxsize=64)
def _longest_member(task: Task, group_size: int) -> float:
    """Expected tokens of the longest of a group, its members taken as independent."""
    shares = ((i + 0.5) / _GRID for i in range(_GRID))
    return sum(quantile(task.lengths, u ** (1.0 / group_size)) for u in shares) / _GRID
