"""What whoever needs a worker asks for and gets: a `Launch` makes a `Handle` out of a `WorkerSpec`.

The owner decides what a worker does and when it is given up; a launch only starts it where it belongs,
carries messages and says that it is gone. It starts nothing again.
"""

import os
import sys
from typing import Any, Protocol

from msgspec import field

from dora_rl.core.record import Record
from dora_rl.launch.messages import SEARCH_PATH_VARIABLE


class Place(Record, frozen=True):
    """What a worker may use, and where."""

    cpus: int | None = 1
    """Cores the worker's threads may keep busy; None leaves that to the worker."""
    gpus: tuple[int, ...] = ()
    """GPUs the worker may use, by their numbers on the node; which one it computes on is told separately."""
    node: str | None = None
    """The node to start the worker on; None leaves that to the launch: a local one takes this machine."""
    labels: dict[str, str] = field(default_factory=dict)
    """Labels that the node must have, by the cluster's names for them."""

    @classmethod
    def on(cls, *devices: str, cpus: int | None = 1) -> "Place":
        """A place for a worker that computes on devices by torch's names: `cpu`, `cuda:1`."""
        return cls(cpus=cpus, gpus=tuple(int(name.partition(":")[2]) for name in devices if ":" in name))

    @property
    def thread_limits(self) -> dict[str, str]:
        """Environment variables that keep torch and the libraries below it to the place's cores."""
        if self.cpus is None:
            return {}
        names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
        return {**dict.fromkeys(names, str(self.cpus)), "TOKENIZERS_PARALLELISM": "false"}


class WorkerSpec(Record, frozen=True):
    """A worker to start: `python -m MODULE ADDRESS`."""

    name: str
    """The worker's name for people, as in "instance 0"."""
    module: str
    log: str | None = None
    """The file that the worker's output is appended to; None is the owner's stderr."""
    place: Place = Place()
    environment: dict[str, str] = field(default_factory=dict)
    """Environment variables on top of the owner's, and of the limits of the place."""
    search_path: tuple[str, ...] = field(default_factory=lambda: tuple(sys.path))
    """Where the worker looks for modules after its own places: by default where its owner does."""

    @property
    def variables(self) -> dict[str, str]:
        """Every environment variable that a launch sets for the worker, on top of the owner's."""
        found = {SEARCH_PATH_VARIABLE: os.pathsep.join(filter(None, self.search_path))}
        return {**self.place.thread_limits, **found, **self.environment}


class Handle(Protocol):
    """A worker as its owner sees it. Nothing blocks but `end`; for one thread at a time."""

    def send(self, message: Record) -> None:
        """Send the worker a message, or keep what the socket does not take; a dead one is sent nothing."""
        ...

    def flush(self) -> bool:
        """Send what was kept for the worker; False while something is left."""
        ...

    def receive(self) -> list[Any]:
        """Everything the worker said since the last call, in order; also what it said before it died."""
        ...

    def fileno(self) -> int:
        """A descriptor, readable when the worker said something, is gone, or takes what was kept for it."""
        ...

    @property
    def is_alive(self) -> bool:
        """False as soon as `receive` noticed that the worker is gone: nothing more will come from it."""
        ...

    @property
    def is_stopped(self) -> bool:
        """Whether the worker is known to be stopped (SIGSTOP): it does nothing until it is continued."""
        ...

    @property
    def node(self) -> str | None:
        """The node of the cluster that the worker is on, once that is known; None for the owner's own."""
        ...

    @property
    def is_placed(self) -> bool:
        """Whether the worker has a place; until then it waits for a node with room, and is no process."""
        ...

    @property
    def is_mid_message(self) -> bool:
        """Whether a part of a message arrived, and the rest is on its way."""
        ...

    def end(self, within_s: float) -> str:
        """Wait up to `within_s` seconds for the worker to end, then kill it with all it started; say how it
        ended.

        That is `exited with 3`, `killed by SIGKILL`, `closed its socket` of one that hung up and went on, or
        `sent what is no message: ...`, after which nothing it says is heard.
        May be called again, and says the same.
        """
        ...


class Launch(Protocol):
    """Starts workers: as processes of this machine, or elsewhere."""

    def start(self, worker: WorkerSpec, replies: Any) -> Handle:
        """Start a worker: it takes messages before it is up. `replies` is the type of what it says.

        The worker ends, with all it started, when its owner is gone, however that ended.
        """
        ...
