"""Where the workers of a run are started: on this machine, or on the nodes of a Ray cluster."""

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from msgspec import Struct

from dora_rl.core.recipe import Cluster
from dora_rl.launch.cluster import RayLaunch
from dora_rl.launch.cluster_check import check_shared
from dora_rl.launch.local import LOCAL
from dora_rl.launch.protocol import Launch
from dora_rl.prepare.cluster_devices import ClusterDevices


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
