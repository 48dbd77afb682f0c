"""Where the workers of a run are started: on this machine, or on the nodes of a Ray cluster.

Beside a GPU the first trainer and the first instance are started at once: they import while the run is
prepared.
"""

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from msgspec import Struct

from dora_rl.core.recipe import Cluster, Recipe
from dora_rl.launch.cluster import RayLaunch
from dora_rl.launch.cluster_check import check_shared
from dora_rl.launch.local import LOCAL
from dora_rl.launch.protocol import Launch
from dora_rl.launch.spares import SpareLaunch
from dora_rl.prepare.cluster_devices import ClusterDevices

_GPU_DRIVER = Path("/dev/nvidiactl")
_IMPORTS = {
    "dora_rl.run.workers.trainer_main": (
        "dora_rl.run.workers.trainer_worker",
        "torch._dynamo",
        "torch._inductor.compile_fx",
    ),
    "dora_rl.run.workers.instance_worker": (
        "dora_rl.engines.native.kind",
        "dora_rl.engines.native.cuda.cuda_backend",
        "dora_rl.weights.store",
    ),
}
"""What takes long to import, by the module of the worker that will need it."""


class RunPlace(Struct, frozen=True, kw_only=True):
    """What starts a run's workers, and what they will have where that is not this machine."""

    launch: Launch
    devices: ClusterDevices | None = None


@contextmanager
def run_place(
    cluster: Cluster, given: Launch, say: Callable[[str], None], directory: Path
) -> Iterator[RunPlace]:
    """The recipe's cluster if it names one, else the launch that was given.

    A launch of the caller's own goes before the recipe's cluster, whose nodes must all see `directory`.
    """
    if cluster.ray is None or given is not LOCAL:
        yield RunPlace(launch=given)
        return
    with closing(RayLaunch(cluster.ray, host=cluster.host)) as launch:
        nodes = launch.nodes()
        cpus, gpus = sum(node.cpus for node in nodes), sum(node.gpus for node in nodes)
        say(f"Ray cluster: {len(nodes)} nodes, {cpus:g} CPUs, {gpus:g} GPUs; workers dial {launch.host}")
        devices = ClusterDevices.of(nodes)
        check_shared(launch, directory)
        yield RunPlace(launch=launch, devices=devices)


@contextmanager
def with_spares(recipe: Recipe, launch: Launch, gpu_driver: Path = _GPU_DRIVER) -> Iterator[Launch]:
    """The launch, after it has begun to start what a run on GPUs of this machine will certainly need."""
    is_on_gpus = recipe.devices.kind != "cpu" and gpu_driver.exists()
    if launch is not LOCAL or not is_on_gpus or recipe.engine.kind not in ("auto", "native"):
        yield launch
        return
    with closing(SpareLaunch()) as spares:
        for worker, imports in _IMPORTS.items():
            spares.prepare(worker, imports)
        yield spares
