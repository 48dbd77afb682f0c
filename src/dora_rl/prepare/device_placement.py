"""Who runs where: instances and the trainer on the devices there are."""

from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from dora_rl.core.errors import ConfigError
from dora_rl.core.recipe import Recipe
from dora_rl.costs.hardware import gpu_like
from dora_rl.costs.model_shapes import ModelShape
from dora_rl.model.config import ModelSizes
from dora_rl.prepare.machine import Gpu
from dora_rl.run.run_setup import DeviceLayout
from dora_rl.sim.plan.gpu_divisions import Division, Machine, divisions


def placements(
    recipe: Recipe, model: ModelSizes, gpus: Sequence[Gpu], num_cores: int
) -> Iterator[DeviceLayout]:
    """Possible placements of the run, the one that suits the recipe best first.

    CPUs are divided between instances and trainer; of GPUs the last ones train. The recipe says how long
    prompts and responses are.
    """
    asked = recipe.devices
    if asked.kind == "cuda" and not gpus:
        raise ConfigError(
            "devices.kind is cuda, but torch sees no GPU here",
            hint="`dora doctor` says why; or set devices.kind=cpu",
        )
    if asked.kind == "cpu" or not gpus:
        instances, ranks, is_in_turns = asked.instances or 1, asked.trainer_ranks or 1, takes_turns(recipe)
        # Where generation and training never overlap, each may have every core.
        share = max(1, (num_cores if is_in_turns else num_cores // 2) // instances)
        left = num_cores if is_in_turns else num_cores - share * instances
        yield DeviceLayout(
            instances=instances,
            is_elastic=bool(asked.elastic) and not is_in_turns,
            instance_threads=asked.instance_threads or share,
            trainer_ranks=ranks,
            trainer_threads=asked.trainer_threads or max(1, left // ranks),
        )
        return
    if asked.trainer_ranks and asked.trainer_ranks > len(gpus):
        raise ConfigError(
            f"devices.trainer_ranks = {asked.trainer_ranks}, but torch sees {len(gpus)} GPUs here",
            hint="each rank needs a GPU of its own",
        )
    for division in _divisions(recipe, model, gpus):
        yield _on_gpus(recipe, division, len(gpus))


def _divisions(recipe: Recipe, model: ModelSizes, gpus: Sequence[Gpu]) -> list[Division]:
    """Divisions of the GPUs, the best first; where the planner knows nothing, the fewest GPUs train."""
    asked, known = recipe.devices, gpu_like(gpus[0].name)
    ranks = [asked.trainer_ranks] if asked.trainer_ranks else range(1, len(gpus) + 1)
    shared = [asked.elastic] if asked.elastic is not None else [False, True]
    if len(gpus) > 1 and known is not None:
        memory_bytes = gpus[0].memory_bytes if asked.memory_gib is None else asked.memory_gib * 2.0**30
        machine = Machine(
            gpu=replace(known, memory_bytes=memory_bytes),
            num_gpus=len(gpus),
            shape=_shape(model),
            most_instances=asked.instances or len(gpus),
        )
        if ranked := divisions(recipe, machine, ranks=ranks, shared=shared):
            return ranked
    return [Division(ranks=r, is_shared=asked.elastic or r == len(gpus), step_s=0.0) for r in ranks]


def _shape(model: ModelSizes) -> ModelShape:
    experts = model.experts
    shape = ModelShape(
        name="the model",
        layers=model.num_layers,
        width=model.hidden_size,
        heads=model.num_heads,
        kv_heads=model.num_kv_heads,
        head_dim=model.head_dim,
        ffn=model.intermediate_size,
        vocabulary=model.vocab_size,
        tied=model.is_tied,
    )
    if experts is None:
        return shape
    return replace(
        shape,
        ffn=experts.intermediate_size,
        experts=experts.num_experts,
        experts_per_token=experts.num_active,
    )


def _on_gpus(recipe: Recipe, division: Division, num_gpus: int) -> DeviceLayout:
    asked, num_others = recipe.devices, num_gpus - division.ranks
    return DeviceLayout(
        instances=asked.instances or (num_gpus if division.is_shared else num_others) or num_gpus,
        # Also where more instances were asked for than there are GPUs beside the trainer's.
        is_elastic=asked.elastic is not False and (division.is_shared or (asked.instances or 0) > num_others),
        instance_device="cuda:0" if num_gpus == 1 else "cuda",
        num_gpus=num_gpus,
        trainer_device=f"cuda:{num_others}",
        trainer_ranks=division.ranks,
        # What is left to the host is small: to wake other threads for it takes longer than to do it.
        instance_threads=asked.instance_threads or 1,
        trainer_threads=asked.trainer_threads or 1,
    )


def takes_turns(recipe: Recipe) -> bool:
    """Whether nothing is generated while the trainer trains."""
    return recipe.control.staleness_bound == 0
