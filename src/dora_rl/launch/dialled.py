"""The owner's end of a worker that dials: started by an agent on some machine, reached over TCP.

Two dial the same port, each with a key of its own: the worker, whose messages go to the owner and nobody
else, and its agent, who says that it was started, what it printed and how it ended. When both are in, the
port is closed.
"""

import os
import secrets
import selectors
import signal
import time
from contextlib import suppress
from typing import Any, Protocol

from dora_rl.core.record import Record
from dora_rl.launch.agent import (
    AgentWord,
    KillWorker,
    WorkerExited,
    WorkerLost,
    WorkerOrder,
    WorkerPrinted,
    WorkerStarted,
)
from dora_rl.launch.connection import Connection
from dora_rl.launch.listener import Listener
from dora_rl.launch.protocol import WorkerSpec

_STDERR = 2
_SHOWN = 12
"""Characters of a node's name that are shown."""
_REPORT_S = 2.0
"""Seconds that an agent has to kill its worker and say so; after them it is taken for lost."""


class AgentStarter(Protocol):
    """Whoever has the agent of one worker started, and knows when there will be none."""

    def fileno(self) -> int:
        """A descriptor, readable when it has something to say."""
        ...

    def failure(self) -> str | None:
        """Why there is no agent any more, or never will be; None while there may be."""
        ...

    def release(self) -> None:
        """Have the agent end, and what was reserved for its worker given back."""
        ...

    def close(self) -> None:
        """Close the descriptor."""
        ...


class Invitation:
    """What a worker and its agent are told so that they may dial in, and where they do."""

    def __init__(self, worker: WorkerSpec, host: str) -> None:
        """`host` is the address of this machine that the two can reach; nothing listens on any other."""
        self.selector = selectors.DefaultSelector()
        keys = {"worker": secrets.token_hex(16), "agent": secrets.token_hex(16)}
        self.listener = Listener(host, keys, self.selector)
        self.order = WorkerOrder(
            name=worker.name,
            module=worker.module,
            address=self.listener.address,
            worker_key=keys["worker"],
            agent_key=keys["agent"],
            variables=worker.variables,
        )


class DialledHandle:
    """A worker that dials, as its owner sees it. Implements Handle."""

    def __init__(
        self,
        worker: WorkerSpec,
        invitation: Invitation,
        replies: Any,
        starter: AgentStarter,
        *,
        own_node: str | None = None,
    ) -> None:
        """`own_node` is the node of a cluster that this machine is, if it is one."""
        self._replies = replies
        self._starter = starter
        self._selector = invitation.selector
        self._listener = invitation.listener
        self._selector.register(starter, selectors.EVENT_READ)
        append = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        self._log = None if worker.log is None else os.open(worker.log, append, 0o666)
        self._agents: list[Connection] = []
        """The agent, and whoever spoke in its place."""
        self._agent: Connection | None = None
        """The one that started the worker, once it said so."""
        self._worker: Connection | None = None
        self._waiting: list[Record] = []
        """Told before it was there."""
        self.pid: int | None = None
        """The number of the worker's process on its machine; None until it is one."""
        self._own_node = own_node
        self._node: str | None = None
        self._code: int | None = None
        self._lost: str | None = None
        self._how_it_ended: str | None = None

    @property
    def is_alive(self) -> bool:
        if self._how_it_ended is not None:
            return False
        return not self._worker.has_hung_up if self._worker is not None else not self._is_over

    @property
    def _is_over(self) -> bool:
        """Whether nothing more is to be heard of how it ended."""
        return self._code is not None or self._lost is not None

    @property
    def is_stopped(self) -> bool:
        # Nobody looks there: its silence is what shows.
        return False

    @property
    def node(self) -> str | None:
        return None if self._node == self._own_node else self._node

    @property
    def is_placed(self) -> bool:
        return self.pid is not None

    @property
    def is_lost(self) -> bool:
        """Whether its agent is gone, or never came, so that nothing is known of how it ended."""
        return self._lost is not None

    @property
    def is_mid_message(self) -> bool:
        return self._worker is not None and self._worker.is_mid_message

    @property
    def address(self) -> str:
        """Where the worker dials, or dialled."""
        return self._listener.address

    def fileno(self) -> int:
        return int(self._selector.fileno())

    def send(self, message: Record) -> None:
        if not self.is_alive:
            return
        if self._worker is None:
            self._waiting.append(message)
        else:
            self._worker.send(message)

    def flush(self) -> bool:
        if not self.is_alive:
            return True
        return self._worker.flush() if self._worker is not None else not self._waiting

    def receive(self) -> list[Any]:
        if self._how_it_ended is not None:
            return []
        # In this order: what the worker said before its end is there when its agent tells of that.
        self._hear_agents()
        if self._worker is None or self._agent is None:
            self._let_in()
        return self._worker.receive() if self._worker is not None else []

    def end(self, within_s: float) -> str:
        if self._how_it_ended is None:
            self._how_it_ended = self._ended(within_s)
            self._starter.release()
            self._selector.unregister(self._starter)
            self._starter.close()
            for each in (*self._agents, *([self._worker] if self._worker else [])):
                each.close()
            self._listener.close()
            self._selector.close()
            if self._log is not None:
                os.close(self._log)
        return self._how_it_ended

    # --- who dials ------------------------------------------------------------------------------

    def _let_in(self) -> None:
        for caller in self._listener.admit():
            if caller.name == "agent":
                self._agents.append(Connection(caller.pipe, AgentWord, self._selector, caller.received))
            elif self._worker is None:
                self._worker = Connection(caller.pipe, self._replies, self._selector, caller.received)
                for message in self._waiting:
                    self._worker.send(message)
                self._waiting.clear()
            else:
                caller.pipe.close()
        self._hear_agents()
        if self._worker is not None and self._agent is not None:
            # Nobody else is expected: strangers find no port any more.
            self._listener.close()

    def _hear_agents(self) -> None:
        for agent in list(self._agents):
            for word in agent.receive():
                self._heard(agent, word)
            if agent.has_hung_up:
                self._agents.remove(agent)
                agent.close()
                if agent is self._agent and self._code is None:
                    where = "its agent" if self._node is None else f"node {self._node[:_SHOWN]}"
                    self._lost = f"was lost with {where}"
        if self._agent is None and self._lost is None and (failure := self._starter.failure()) is not None:
            self._lost = failure

    def _heard(self, agent: Connection, word: Any) -> None:
        match word:
            case WorkerStarted(pid=pid, node=node):
                self._agent, self.pid, self._node = agent, pid, node
            case WorkerPrinted(output=output):
                # The disk may be full; a worker that wrote there itself would lose the line too.
                with suppress(OSError):
                    os.write(_STDERR if self._log is None else self._log, output)
            case WorkerExited(code=code):
                self._code = code
            case WorkerLost(reason=reason):
                self._lost = reason

    # --- its end --------------------------------------------------------------------------------

    def _ended(self, within_s: float) -> str:
        fault = self._worker.fault if self._worker is not None else None
        self._await_report(0.0 if fault else within_s)
        went_on = not self._is_over and self._worker is not None and self._worker.has_hung_up
        if not self._is_over and self._agent is not None:
            self._agent.send(KillWorker())
            self._await_report(_REPORT_S)
        if fault or (self._worker is not None and self._worker.fault):
            assert self._worker is not None
            return str(self._worker.fault)
        if went_on and self._lost is None:
            return "closed its socket"
        code = self._code
        if code is None:
            never = "was given up before it had begun"
            return self._lost or (never if self._agent is None else "did not answer, nor did its agent")
        return f"killed by {signal.Signals(-code).name}" if code < 0 else f"exited with {code}"

    def _await_report(self, within_s: float) -> None:
        """Hear how the worker ended, for so long at most; what else it says meanwhile is of no use."""
        until = time.monotonic() + within_s
        self.receive()
        while not self._is_over and (left_s := until - time.monotonic()) > 0:
            self._selector.select(left_s)
            self.receive()
