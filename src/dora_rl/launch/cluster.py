"""Workers on the nodes of a Ray cluster. Ray places and watches; it decides nothing and carries no message.

    owner                      Ray driver                  node
    RayLaunch.start ──order──> placement group, actor ───> agent ── starts ──> worker
    DialledHandle <─────────────── TCP, a key each ──────────┴───────────────────┘

Ray lives in a process of its own, which the first worker needs and whose end is the end of all its actors: so
what Ray's own code does to its process, and its signal handlers, are not the orchestrator's. This module does
not import it.
"""

import os
import time
from importlib.util import find_spec
from typing import Any, TypeVar

from dora_rl.core.errors import DoraError, UserError, install_hint
from dora_rl.launch.dialled import DialledHandle, Invitation
from dora_rl.launch.local import LOCAL
from dora_rl.launch.messages import Broken
from dora_rl.launch.protocol import Handle, WorkerSpec
from dora_rl.launch.ray_words import (
    Connect,
    Connected,
    DriverWord,
    KeepWorker,
    ListNodes,
    Node,
    NodesListed,
    ReleaseWorker,
)
from dora_rl.launch.waiting import wait_for

_Word = TypeVar("_Word", Connected, NodesListed)

CONNECT_S = 90.0
"""Longest wait for Ray to be imported and the cluster to answer."""


class RayLaunch:
    """Starts workers on a Ray cluster, from a machine that is one of its nodes. Implements Launch."""

    def __init__(self, address: str, *, host: str | None = None) -> None:
        """Connect to the cluster at `address`, or the one this machine is a node of where that is `auto`.

        Workers dial back to `host`, by default the address by which Ray knows this machine.
        """
        if find_spec("ray") is None:
            raise UserError("cluster.ray needs Ray, which is not installed", hint=install_hint("ray"))
        if address.startswith("ray://"):
            raise UserError(
                f"{address} is an address of Ray Client, and workers could not dial back through it",
                hint="run on a node of the cluster, with cluster.ray=auto",
            )
        self._address = address
        self._number = 0
        self._driver = self._start_driver()
        try:
            connected = self._await(Connected)
        except BaseException:
            self.close()
            raise
        self.host = host or connected.host
        self.node = connected.node
        """The node of the cluster that this machine is."""

    def start(self, worker: WorkerSpec, replies: Any) -> DialledHandle:
        self._driver.receive()  # Its end is seen by who reads.
        if not self._driver.is_alive:
            # With it all its workers went. Whoever owned them has them started again.
            self._driver.end(within_s=0.0)
            self._driver = self._start_driver()
        invitation = Invitation(worker, self.host)
        number, self._number = self._number, self._number + 1
        self._driver.send(KeepWorker(number=number, order=invitation.order, place=worker.place))
        reserved = _Reservation(self._driver, number)
        return DialledHandle(worker, invitation, replies, reserved, own_node=self.node)

    def nodes(self) -> tuple[Node, ...]:
        """The nodes of the cluster that are alive now, this machine first."""
        self._driver.send(ListNodes())
        found = self._await(NodesListed).nodes
        return tuple(sorted(found, key=lambda node: node.id != self.node))

    def close(self) -> None:
        """End every worker that is left, with all that was reserved for them."""
        self._driver.end(within_s=0.0)

    def _start_driver(self) -> Handle:
        spec = WorkerSpec(name="the Ray driver", module="dora_rl.launch.ray_driver")
        driver = LOCAL.start(spec, DriverWord)
        driver.send(Connect(address=self._address))
        return driver

    def _await(self, kind: type[_Word]) -> _Word:
        until = time.monotonic() + CONNECT_S
        while time.monotonic() < until:
            wait_for([self._driver], [], 1.0)
            for word in self._driver.receive():
                if isinstance(word, kind):
                    return word
                if isinstance(word, Broken):
                    raise UserError(word.message, hint=word.hint)
            if not self._driver.is_alive:
                raise DoraError(
                    f"the Ray driver {self._driver.end(within_s=1.0)} before the cluster answered"
                )
        raise DoraError(f"the Ray cluster at {self._address} did not answer for {CONNECT_S:g} s")


class _Reservation:
    """What one worker has of the cluster. Implements AgentStarter."""

    def __init__(self, driver: Handle, number: int) -> None:
        self._driver = driver
        self._number = number
        # Of its own: the driver may be replaced by another, and its number be given to something else.
        self._end = os.dup(driver.fileno())
        self._failure: str | None = None

    def fileno(self) -> int:
        return self._end

    def failure(self) -> str | None:
        for word in self._driver.receive():
            if isinstance(word, Broken):
                self._failure = f"was lost with the Ray driver: {word.message}"
        if self._failure is None and not self._driver.is_alive:
            self._failure = "was lost with the Ray driver"
        return self._failure

    def release(self) -> None:
        self._driver.send(ReleaseWorker(number=self._number))

    def close(self) -> None:
        os.close(self._end)
