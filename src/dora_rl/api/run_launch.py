"""Where the workers of a run are started: on this machine, or on the nodes of a Ray cluster."""

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from dora_rl.core.recipe import Cluster
from dora_rl.launch.cluster import RayLaunch
from dora_rl.launch.cluster_check import check_shared
from dora_rl.launch.local import LOCAL
from dora_rl.launch.protocol import Launch


@contextmanager
def run_launch(
    cluster: Cluster, given: Launch, say: Callable[[str], None], directory: Path
) -> Iterator[Launch]:
    """The launch of a run's workers: on the recipe's cluster if it names one, else the one that was given.

    A launch of the caller's own goes before the recipe's cluster, whose nodes must all see `directory`.
    """
    if cluster.ray is None or given is not LOCAL:
        yield given
        return
    with closing(RayLaunch(cluster.ray, host=cluster.host)) as launch:
        nodes = launch.nodes()
        cpus, gpus = sum(node.cpus for node in nodes), sum(node.gpus for node in nodes)
        say(f"Ray cluster: {len(nodes)} nodes, {cpus:g} CPUs, {gpus:g} GPUs; workers dial {launch.host}")
        check_shared(launch, directory)
        yield launch
