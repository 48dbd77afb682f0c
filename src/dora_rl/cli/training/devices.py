"""Who runs where: instances and the trainer on the devices there are."""

from collections.abc import Sequence

from dora_rl.cli.machine import Gpu
from dora_rl.core.errors import ConfigError
from dora_rl.core.recipe import Recipe
from dora_rl.runtime.setup import Devices


def place(recipe: Recipe, gpus: Sequence[Gpu], num_cores: int) -> Devices:
    """CPUs are divided; of GPUs the last ones train, or where those are all, instances share them."""
    asked = recipe.devices
    if asked.kind == "cuda" and not gpus:
        raise ConfigError(
            "devices.kind is cuda, but torch sees no GPU here",
            hint="`dora doctor` says why; or set devices.kind=cpu",
        )
    if asked.kind == "cpu" or not gpus:
        return _on_cpus(recipe, num_cores)
    num_others = len(gpus) - asked.trainer_ranks
    if num_others < 0:
        raise ConfigError(
            f"devices.trainer_ranks = {asked.trainer_ranks}, but torch sees {len(gpus)} GPUs here",
            hint="each rank needs a GPU of its own",
        )
    return Devices(
        instances=asked.instances or num_others or len(gpus),
        is_elastic=not num_others if asked.elastic is None else asked.elastic,
        instance_device="cuda:0" if len(gpus) == 1 else "cuda",
        trainer_device=f"cuda:{num_others}",
        trainer_ranks=asked.trainer_ranks,
        instance_threads=asked.instance_threads or 1,
        trainer_threads=asked.trainer_threads or max(1, num_cores // 2),
    )


def _on_cpus(recipe: Recipe, num_cores: int) -> Devices:
    asked = recipe.devices
    instances, ranks = asked.instances or 1, asked.trainer_ranks
    if takes_turns(recipe):
        # Generation and training never overlap, so each may have every core.
        share = max(1, num_cores // instances)
        return Devices(
            instances=instances,
            instance_threads=asked.instance_threads or share,
            trainer_ranks=ranks,
            trainer_threads=asked.trainer_threads or max(1, num_cores // ranks),
        )
    share = max(1, num_cores // 2 // instances)
    return Devices(
        instances=instances,
        is_elastic=bool(asked.elastic),
        instance_threads=asked.instance_threads or share,
        trainer_ranks=ranks,
        trainer_threads=asked.trainer_threads or max(1, (num_cores - share * instances) // ranks),
    )


def takes_turns(recipe: Recipe) -> bool:
    """Whether nothing is generated while the trainer trains."""
    return recipe.control.schedule == "sync" or recipe.control.max_staleness == 0
