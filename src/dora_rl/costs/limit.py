"""The zero-bubble limit: how fast a step could be if nobody ever waited.

    min over splits of  max(T_train, T_generate, (T_longest + T_train) / (S + 1))

T_generate assumes every instance full and a single version; T_longest a trajectory of the greatest
length that decodes alone, with its environment's time. Devices too few to be split take turns: then both
sides last T_train + T_generate.
"""

from collections.abc import Iterator

from dora_rl.core.recipe import Recipe
from dora_rl.core.record import Record
from dora_rl.costs.length_moments import longest_wait_s, moments, tokens_per_trajectory
from dora_rl.costs.rollout import RolloutCost, rollout_cost
from dora_rl.costs.train_cost import train_cost


class DeviceSplit(Record, frozen=True):
    """One division of the devices, and the seconds that each side of a step takes under it."""

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


def split_times(recipe: Recipe, rollout_gpus: int, tensor_parallel: int) -> DeviceSplit:
    """The seconds of one split, all devices busy."""
    train_s = _train_s(recipe, recipe.cluster.gpus - rollout_gpus)
    generate_s = _generate_s(recipe, rollout_gpus, tensor_parallel)
    return _split(recipe, rollout_gpus, tensor_parallel, train_s, generate_s)


def in_turn(recipe: Recipe, tensor_parallel: int) -> DeviceSplit:
    """The seconds of devices that all generate and then all train."""
    gpus = recipe.cluster.gpus
    total_s = _train_s(recipe, gpus) + _generate_s(recipe, gpus, tensor_parallel)
    return _split(recipe, gpus, tensor_parallel, total_s, total_s)


def _split(
    recipe: Recipe, rollout_gpus: int, tensor_parallel: int, train_s: float, generate_s: float
) -> DeviceSplit:
    longest = moments(recipe.task).longest
    longest_s = longest * rollout_cost(recipe, tensor_parallel).step_s(1, longest / 2)
    longest_s += longest_wait_s(recipe.task)
    return DeviceSplit(
        rollout_gpus=rollout_gpus,
        tensor_parallel=tensor_parallel,
        train_s=train_s,
        generate_s=generate_s,
        longest_s=(longest_s + train_s) / (recipe.control.max_staleness + 1),
    )


def _train_s(recipe: Recipe, gpus: int) -> float:
    training = train_cost(recipe)
    tokens = recipe.batch.trajectories * tokens_per_trajectory(recipe.task)
    return training.step_s(tokens, gpus) + training.publish_s(gpus)


def _generate_s(recipe: Recipe, gpus: int, tensor_parallel: int) -> float:
    rate = instance_tokens_per_s(rollout_cost(recipe, tensor_parallel), recipe) * (gpus // tensor_parallel)
    return recipe.batch.trajectories * moments(recipe.task).mean / rate


def splits(recipe: Recipe, tensor_parallel: int) -> Iterator[DeviceSplit]:
    """Every division that leaves at least one instance and one training device."""
    step = tensor_parallel * max(1, recipe.cluster.gpus // (tensor_parallel * 512))
    for rollout_gpus in range(step, recipe.cluster.gpus, step):
        yield split_times(recipe, rollout_gpus, tensor_parallel)


def limit(recipe: Recipe, tensor_parallel: int) -> DeviceSplit:
    """The split with the shortest step, and its seconds: the zero-bubble limit."""
    found = min(splits(recipe, tensor_parallel), key=lambda split: split.step_s, default=None)
    return found or in_turn(recipe, tensor_parallel)
