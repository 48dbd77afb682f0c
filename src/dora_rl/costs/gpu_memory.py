"""Memory: what a set-up puts on a rollout GPU and on a training GPU, and whether it fits.

Weights and KV share a rollout GPU; the trainer's state is sharded over everything that trains. Knows
sizes only: how many versions are live at once is the schedule's to say.
"""

from dora_rl.core.errors import ConfigError
from dora_rl.core.recipe import Recipe
from dora_rl.core.record import Record
from dora_rl.costs.rollout import rollout_cost
from dora_rl.costs.train_cost import train_cost


class Memory(Record, frozen=True):
    """Bytes on one rollout GPU and on one training GPU at their peak."""

    gpu_bytes: float
    weights_bytes: float
    """Bytes of one version's weights on a rollout GPU."""
    kv_bytes: float
    """Bytes left for KV beside one version on a rollout GPU."""
    trainer_bytes: float
    """Bytes of weights, gradients and optimizer state on a training GPU."""


def memory(recipe: Recipe, tensor_parallel: int) -> Memory:
    """The memory that a recipe needs on each kind of device."""
    cost, training = rollout_cost(recipe, tensor_parallel), train_cost(recipe)
    return Memory(
        gpu_bytes=cost.gpu.memory_bytes,
        weights_bytes=cost.shape.weight_bytes / tensor_parallel,
        kv_bytes=cost.kv_bytes(cost.kv_tokens()) / tensor_parallel,
        trainer_bytes=training.state_bytes / training_gpus(recipe),
    )


def training_gpus(recipe: Recipe) -> int:
    """Number of devices that train, always or in turn."""
    return recipe.cluster.gpus - (recipe.cluster.rollout_gpus or 0)


def fewest_training_gpus(recipe: Recipe) -> int:
    """Number of devices below which the trainer's state does not fit."""
    cost = train_cost(recipe)
    return int(-(-cost.state_bytes // (cost.gpu.memory_bytes * recipe.cluster.memory_share)))


def versions_that_fit(recipe: Recipe, tensor_parallel: int) -> int:
    """Number of versions that one instance may hold at once."""
    return rollout_cost(recipe, tensor_parallel).spec(recipe, node=0, elastic=False).versions_that_fit


def check_memory(recipe: Recipe, *, num_versions: int) -> None:
    """Raise an error if a decided set-up does not fit; `num_versions` may be live at once."""
    _check_trainer(recipe)
    assert recipe.cluster.tensor_parallel is not None, "the split must be chosen first"
    _check_versions(recipe, recipe.cluster.tensor_parallel, num_versions)


def _check_trainer(recipe: Recipe) -> None:
    needed, there = fewest_training_gpus(recipe), training_gpus(recipe)
    if there < needed:
        state_bytes = train_cost(recipe).state_bytes
        raise ConfigError(
            f"training {recipe.model} needs {state_bytes / 1e9:.0f} GB for weights, gradients and optimizer: "
            f"at least {needed} x {recipe.cluster.gpu}, but {there} of {recipe.cluster.gpus} train",
            hint="more GPUs, fewer cluster.rollout_gpus, or a smaller model",
        )


def _check_versions(recipe: Recipe, tensor_parallel: int, num_versions: int) -> None:
    """Raise an error if an instance cannot hold every live version, as shared placement needs."""
    fit = versions_that_fit(recipe, tensor_parallel)
    if recipe.control.placement == "shared" and fit < num_versions:
        raise ConfigError(
            f"placement 'shared' keeps up to {num_versions} versions on each instance, but {fit} "
            f"of {recipe.model} fit on {tensor_parallel} x {recipe.cluster.gpu}",
            hint=f"set max_staleness={fit - 1}, raise tensor_parallel or max_versions, or use placement=auto",
        )
