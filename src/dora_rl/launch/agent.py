"""What starts one worker on a machine that is not its owner's, and stays beside it until it has ended.

    owner                     agent                            worker
    listens  <── key, words ── keep_worker(order) ── starts ──> python -m MODULE ADDRESS
             <───────────────── key, messages ────────────────  dials the same address itself

The agent says that the worker was started, what it prints and how it ended; it is told to kill it. It dials
with a key of its own. When its owner is gone it kills the worker with all that started; when the agent itself
is gone, the worker ends by its lifeline: a pipe that only the agent holds open.
"""

import os
import selectors
import signal
import socket
import subprocess
import sys
from contextlib import suppress

import msgspec

from dora_rl.core.record import Record
from dora_rl.launch.dial import dial
from dora_rl.launch.framing import Frames, framed
from dora_rl.launch.messages import KEY_VARIABLE, LIFELINE_VARIABLE, Hello, Message

_READ_BYTES = 1 << 16
_FAREWELL_S = 10.0
"""Seconds for which an owner may take to hear how its worker ended."""


class WorkerOrder(Record, frozen=True):
    """A worker to start, as an agent is told it: `python -m MODULE ADDRESS`."""

    name: str
    module: str
    address: str
    """Where both dial."""
    worker_key: str
    agent_key: str
    variables: dict[str, str]
    """Environment variables on top of the agent's."""


class WorkerStarted(Message, frozen=True):
    """Said by an agent: the worker is a process now."""

    pid: int
    node: str | None
    """The node of the cluster it is on; None where there is none to name."""


class WorkerPrinted(Message, frozen=True):
    """Said by an agent: output of the worker, or about why it has none yet."""

    output: bytes


class WorkerExited(Message, frozen=True):
    """Said by an agent last: how the worker ended, as Popen.returncode has it."""

    code: int


class WorkerLost(Message, frozen=True):
    """Said by whoever was to start an agent: there is none, or none any more."""

    reason: str


class KillWorker(Message, frozen=True):
    """Told to an agent: kill the worker with all it started."""


AgentWord = WorkerStarted | WorkerPrinted | WorkerExited | WorkerLost


def keep_worker(order: WorkerOrder, node: str | None = None) -> None:
    """Start a worker, tell its owner of it, and return when it has ended and the owner knows."""
    with dial(order.address.removeprefix("tcp:")) as owner:
        owner.sendall(framed(Hello(key=order.agent_key)))
        _Keeper(order, owner, node).keep()


def tell_owner(order: WorkerOrder, *words: AgentWord) -> None:
    """Tell the owner of a worker something in the agent's place; nothing where the owner listens no more."""
    with suppress(OSError), dial(order.address.removeprefix("tcp:")) as owner:
        for word in (Hello(key=order.agent_key), *words):
            owner.sendall(framed(word))
        _say_farewell(owner)


class _Keeper:
    """A worker that runs, its output, its owner."""

    def __init__(self, order: WorkerOrder, owner: socket.socket, node: str | None) -> None:
        self._owner = owner
        # Only this process holds the other end open: not the worker, nor what that starts.
        held_by_worker, self._lifeline = os.pipe()
        self._output, written_by_worker = os.pipe()
        self._process = subprocess.Popen(
            [sys.executable, "-m", order.module, order.address],
            stdin=subprocess.DEVNULL,
            stdout=written_by_worker,
            stderr=written_by_worker,
            pass_fds=[held_by_worker],
            env={
                **os.environ,
                **order.variables,
                KEY_VARIABLE: order.worker_key,
                LIFELINE_VARIABLE: str(held_by_worker),
            },
            start_new_session=True,
        )
        os.close(held_by_worker)
        os.close(written_by_worker)
        os.set_blocking(self._output, False)
        # Readable at its exit, before anybody waited for it: until then its number is no other's.
        self._exit = os.pidfd_open(self._process.pid)
        self._said = Frames(_READ_BYTES)
        self._say(WorkerStarted(pid=self._process.pid, node=node))

    def keep(self) -> None:
        """Pass output on, and obey, until the worker has ended."""
        with selectors.DefaultSelector() as selector:
            for descriptor in (self._output, self._exit, self._owner):
                selector.register(descriptor, selectors.EVENT_READ)
            has_exited = False
            while not has_exited:
                for key, _ in selector.select():
                    if key.fd == self._exit:
                        has_exited = True
                    elif key.fd == self._output and not self._pass_on():
                        selector.unregister(self._output)
                    elif key.fileobj is self._owner and not self._obey():
                        # Gone, or it has hung up: in either case the worker is nobody's.
                        selector.unregister(self._owner)
        self._kill()
        code = self._process.wait()
        self._pass_on()
        self._say(WorkerExited(code=code))
        _say_farewell(self._owner)
        for descriptor in (self._lifeline, self._output, self._exit):
            os.close(descriptor)

    def _pass_on(self) -> bool:
        """Send on what the worker printed; False at the end of its output."""
        try:
            while output := os.read(self._output, _READ_BYTES):
                self._say(WorkerPrinted(output=output))
        except BlockingIOError:
            return True
        return False

    def _obey(self) -> bool:
        """Kill the worker if the owner says so, or is gone; False then."""
        try:
            received = self._owner.recv(_READ_BYTES)
        except OSError:
            received = b""
        kills = [msgspec.msgpack.decode(frame, type=KillWorker) for frame in self._said.feed(received)]
        if kills or not received:
            self._kill()
        return bool(received)

    def _say(self, word: AgentWord) -> None:
        # An owner that is gone is noticed by who reads.
        with suppress(OSError):
            self._owner.sendall(framed(word))

    def _kill(self) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)


def _say_farewell(owner: socket.socket) -> None:
    """Wait until the other end has hung up: what it did not read yet would be lost with a sudden end."""
    with suppress(OSError):
        owner.shutdown(socket.SHUT_WR)
        owner.settimeout(_FAREWELL_S)
        while owner.recv(_READ_BYTES):
            pass
