"""What the process that speaks to Ray is told, and what it says."""

from dora_rl.core.record import Record
from dora_rl.launch.agent import WorkerOrder
from dora_rl.launch.messages import Broken, Message, Stop
from dora_rl.launch.protocol import Place


class Node(Record, frozen=True):
    """A node of a Ray cluster, as Ray has it."""

    id: str
    host: str
    """Its address in the cluster's network."""
    cpus: float
    gpus: float
    gpu_kind: str | None
    """The kind of its GPUs by Ray's name, such as `H100`; None where it has none, or Ray does not know."""
    memory_bytes: float
    labels: dict[str, str]


class Connect(Message, frozen=True):
    """Told first: the cluster to connect to, `auto` or an address."""

    address: str


class KeepWorker(Message, frozen=True):
    """Told: reserve a place, and have a worker started and kept there."""

    number: int
    order: WorkerOrder
    place: Place


class ReleaseWorker(Message, frozen=True):
    """Told: end a worker's actor, and give its place back."""

    number: int


class ListNodes(Message, frozen=True):
    """Told: say which nodes are alive."""


class Connected(Message, frozen=True):
    """Said: the cluster answered; this machine is a node of it."""

    host: str
    node: str


class NodesListed(Message, frozen=True):
    """Said: the nodes that are alive."""

    nodes: tuple[Node, ...]


DriverCommand = Connect | KeepWorker | ReleaseWorker | ListNodes | Stop
DriverWord = Connected | NodesListed | Broken
