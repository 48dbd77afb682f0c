"""Who runs where: instances and the trainer on the devices there are."""

from collections.abc import Sequence

from dora_rl.cli.machine import Gpu
from dora_rl.core.errors import ConfigError
from dora_rl.core.recipe import Recipe
from dora_rl.runtime.setup import Devices


def place(recipe: Recipe, gpus: Sequence[Gpu], num_cores: int) -> Devices:
    """CPUs are divided, one GPU is shared, of several the last one trains."""
    asked = recipe.devices
    if asked.kind == "cuda" and not gpus:
        raise ConfigError(
            "devices.kind is cuda, but torch sees no GPU here",
            hint="`dora doctor` says why; or set devices.kind=cpu",
        )
    if asked.kind == "cpu" or not gpus:
        return _on_cpus(recipe, num_cores)
    is_shared = len(gpus) == 1
    return Devices(
        instances=asked.instances or max(1, len(gpus) - 1),
        is_elastic=is_shared if asked.elastic is None else asked.elastic,
        instance_device="cuda:0" if is_shared else "cuda",
        trainer_device=f"cuda:{len(gpus) - 1}",
        instance_threads=asked.instance_threads or 1,
        trainer_threads=asked.trainer_threads or max(1, num_cores // 2),
    )


def _on_cpus(recipe: Recipe, num_cores: int) -> Devices:
    asked = recipe.devices
    instances = asked.instances or 1
    if takes_turns(recipe):
        # Generation and training never overlap, so each may have every core.
        share = max(1, num_cores // instances)
        return Devices(
            instances=instances,
            instance_threads=asked.instance_threads or share,
            trainer_threads=asked.trainer_threads or num_cores,
        )
    share = max(1, num_cores // 2 // instances)
    return Devices(
        instances=instances,
        is_elastic=bool(asked.elastic),
        instance_threads=asked.instance_threads or share,
        trainer_threads=asked.trainer_threads or max(1, num_cores - share * instances),
    )


def takes_turns(recipe: Recipe) -> bool:
    """Whether nothing is generated while the trainer trains."""
    return recipe.control.schedule == "sync" or recipe.control.max_staleness == 0
