"""Who runs where on a cluster: planned as on one machine with all its devices, then spread over the nodes."""

from collections.abc import Iterator

from msgspec.structs import replace

from dora_rl.core.errors import ConfigError
from dora_rl.core.recipe import Recipe
from dora_rl.costs.hardware import gpu_like
from dora_rl.model.config import ModelSizes
from dora_rl.prepare.cluster_devices import ClusterDevices
from dora_rl.prepare.device_placement import placements
from dora_rl.prepare.machine import Gpu
from dora_rl.run.run_setup import DeviceLayout

_GIB = 2**30


def cluster_placements(recipe: Recipe, model: ModelSizes, cluster: ClusterDevices) -> Iterator[DeviceLayout]:
    """Possible placements, the best first, as on one machine that has every device; see `on_nodes`.

    Every instance and every rank has a GPU of its own, and all ranks are on one node.
    """
    asked = recipe.devices
    gpus = found_gpus(cluster, asked.memory_gib) if asked.kind != "cpu" else []
    if not gpus:
        instances = asked.instances or max(1, cluster.nodes - 1)
        spread = replace(recipe, devices=replace(asked, instances=instances))
        for layout in placements(spread, model, [], cluster.cpus):
            yield replace(
                layout,
                instance_threads=min(layout.instance_threads, cluster.most_cpus),
                trainer_threads=min(layout.trainer_threads, cluster.most_cpus),
            )
        return
    if asked.elastic:
        raise ConfigError(
            "devices.elastic: on a cluster instances and trainer have GPUs of their own",
            hint="leave devices.elastic out, or train on one machine: cluster.ray=null",
        )
    found = False
    for layout in placements(replace(recipe, devices=replace(asked, elastic=False)), model, gpus, 1):
        has_room = layout.instances + layout.trainer_ranks <= len(gpus)
        if has_room and layout.trainer_ranks <= cluster.most_gpus:
            found = True
            yield replace(layout, is_elastic=False)
    if not found:
        raise ConfigError(
            f"the cluster's {len(gpus)} GPUs, at most {cluster.most_gpus} on a node, have no room for "
            f"{asked.instances or 1} instances and a trainer of {asked.trainer_ranks or 1} ranks on one node",
            hint="lower devices.instances or devices.trainer_ranks, or add nodes",
        )


def on_nodes(layout: DeviceLayout) -> DeviceLayout:
    """The same placement for workers that see nothing but the GPUs that Ray gives them."""
    if layout.instance_device == "cpu":
        return layout
    return replace(layout, instance_device="cuda:0", trainer_device="cuda:0")


def found_gpus(cluster: ClusterDevices, memory_gib: float | None) -> list[Gpu]:
    """The GPUs, with the memory that was said, or else that their kind has; a ConfigError without either."""
    return [Gpu(name=kind, memory_bytes=_memory_bytes(kind, memory_gib)) for kind in cluster.gpus]


def _memory_bytes(kind: str, memory_gib: float | None) -> int:
    known = gpu_like(kind) if kind else None
    if memory_gib is None and known is None:
        raise ConfigError(
            f"how much memory a GPU of the cluster has is not known ({kind or 'Ray does not say its kind'})",
            hint="say it: --set devices.memory_gib=80",
        )
    return int(memory_gib * _GIB) if memory_gib is not None else int(known.memory_bytes if known else 0)
