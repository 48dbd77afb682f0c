"""The zero-bubble limit: how fast a step could be if nobody ever waited.

    min over splits of  max(T_train, T_generate, (T_longest + T_train) / (S + 1))

T_generate assumes every instance full and a single version; T_longest a trajectory of the greatest
length that decodes alone.
"""

from collections.abc import Iterator

from dora_rl.core.recipe import Recipe
from dora_rl.core.record import Record
from dora_rl.costs.lengths import moments, tokens_per_trajectory
from dora_rl.costs.rollout import RolloutCost, rollout_cost
from dora_rl.costs.training import train_cost


class Split(Record, frozen=True):
    """One division of the devices and the times it gives."""

    rollout_gpus: int
    tensor_parallel: int
    train_s: float
    generate_s: float
    longest_s: float
    """(T_longest + T_train) / (S + 1)"""

    @property
    def step_s(self) -> float:
        return max(self.train_s, self.generate_s, self.longest_s)


def instance_tokens_per_s(cost: RolloutCost, recipe: Recipe) -> float:
    """Tokens a second of an instance that is always full, prefill counted."""
    m = moments(recipe.task)
    batch = min(recipe.cluster.slots, cost.kv_tokens() / m.mean_context)
    per_step = cost.step_s(batch, batch * m.mean_context)
    decode_s = m.mean * per_step / batch
    prefill_s = cost.prefill_s(tokens_per_trajectory(recipe.task) - m.mean) / (
        1 if recipe.control.prompt_replication else recipe.batch.group_size
    )
    return m.mean / (decode_s + prefill_s)


def split_times(recipe: Recipe, rollout_gpus: int, tensor_parallel: int) -> Split:
    """What one split gives, all devices busy."""
    cost, training = rollout_cost(recipe, tensor_parallel), train_cost(recipe)
    trajectories, m = recipe.batch.trajectories, moments(recipe.task)
    gpus = recipe.cluster.gpus - rollout_gpus
    train_s = training.step_s(trajectories * tokens_per_trajectory(recipe.task), gpus)
    train_s += training.publish_s(gpus)
    rate = instance_tokens_per_s(cost, recipe) * (rollout_gpus // tensor_parallel)
    longest_s = m.longest * cost.step_s(1, m.longest / 2)
    return Split(
        rollout_gpus=rollout_gpus,
        tensor_parallel=tensor_parallel,
        train_s=train_s,
        generate_s=trajectories * m.mean / rate,
        longest_s=(longest_s + train_s) / (recipe.control.max_staleness + 1),
    )


def splits(recipe: Recipe, tensor_parallel: int) -> Iterator[Split]:
    """Every division that leaves at least one instance and one training device."""
    step = tensor_parallel * max(1, recipe.cluster.gpus // (tensor_parallel * 512))
    for rollout_gpus in range(step, recipe.cluster.gpus, step):
        yield split_times(recipe, rollout_gpus, tensor_parallel)


def limit(recipe: Recipe, tensor_parallel: int) -> Split:
    """The best split and its times."""
    return min(splits(recipe, tensor_parallel), key=lambda split: split.step_s)
