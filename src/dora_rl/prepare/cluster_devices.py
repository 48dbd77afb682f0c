"""What a cluster has: the devices of its nodes together, and what no single node exceeds."""

from collections.abc import Sequence

from dora_rl.core.errors import ConfigError
from dora_rl.core.record import Record
from dora_rl.launch.ray_words import Node


class ClusterDevices(Record, frozen=True):
    """The devices of the nodes that take workers."""

    nodes: int
    cpus: int
    """Cores of all nodes."""
    most_cpus: int
    """Cores of the node that has most."""
    memory_bytes: int
    """Host memory of all nodes."""
    gpus: tuple[str, ...] = ()
    """The kind of each GPU; empty where Ray does not know it."""
    most_gpus: int = 0
    """GPUs of the node that has most."""

    @classmethod
    def of(cls, nodes: Sequence[Node]) -> "ClusterDevices":
        """The devices of a cluster with these nodes; those without a core take no worker."""
        working = [node for node in nodes if node.cpus >= 1]
        if not working:
            raise ConfigError(
                "no node of the Ray cluster has a core for a worker", hint="start nodes with `ray start`"
            )
        return cls(
            nodes=len(working),
            cpus=sum(int(node.cpus) for node in working),
            most_cpus=max(int(node.cpus) for node in working),
            memory_bytes=int(sum(node.memory_bytes for node in working)),
            gpus=tuple(node.gpu_kind or "" for node in working for _ in range(int(node.gpus))),
            most_gpus=max(int(node.gpus) for node in working),
        )
