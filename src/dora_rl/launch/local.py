"""Workers as processes of this machine, each behind a socket pair that it inherits."""

import os
import selectors
import signal
import socket
import subprocess
import sys
from contextlib import ExitStack, suppress
from typing import Any

from dora_rl.core.record import Record
from dora_rl.launch.connection import Connection
from dora_rl.launch.protocol import WorkerSpec

STDERR = 2


class LocalLaunch:
    """Starts workers as Python processes of this machine. Implements Launch."""

    def __init__(self, *, in_own_group: bool = True) -> None:
        """`in_own_group`: a worker is killed with all it started, and not by the terminal's interrupt.

        Otherwise a worker is of its owner's process group: whoever ends that ends both.
        """
        self._in_own_group = in_own_group

    def start(self, worker: WorkerSpec, replies: Any) -> "LocalHandle":
        place = worker.place
        is_here = place.node is None and not place.labels
        assert is_here, f"{worker.name} belongs on {place}, not on this machine"
        ours, theirs = socket.socketpair()
        with theirs, ExitStack() as opened:
            output = STDERR if worker.log is None else opened.enter_context(open(worker.log, "ab"))
            process = subprocess.Popen(
                [sys.executable, "-m", worker.module, f"fd:{theirs.fileno()}"],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env={**os.environ, **worker.variables},
                # No session: the system ends a stopped group of the owner's session when the owner dies, also
                # one that was stopped before its worker could ask to be woken.
                process_group=0 if self._in_own_group else None,
            )
        return LocalHandle(process, ours, replies, is_leader=self._in_own_group)


LOCAL = LocalLaunch()
"""The launch of everything that is given no other: processes of this machine, each in a group of its own."""


class LocalHandle:
    """A worker that is a process of this machine. Implements Handle.

    Its end is seen by a descriptor of the process itself where the system has one, whether or not something
    it started still holds the socket.
    """

    def __init__(
        self, process: subprocess.Popen[bytes], pipe: socket.socket, replies: Any, *, is_leader: bool
    ) -> None:
        self._process = process
        self._is_leader = is_leader
        self._selector = selectors.DefaultSelector()
        self._connection = Connection(pipe, replies, self._selector)
        self._pidfd = os.pidfd_open(process.pid) if hasattr(os, "pidfd_open") else None
        if self._pidfd is not None:
            self._selector.register(self._pidfd, selectors.EVENT_READ)
        self._has_exited = False
        self._how_it_ended: str | None = None

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        return not (self._has_exited or self._connection.has_hung_up)

    @property
    def is_stopped(self) -> bool:
        # Only looked at: whoever waits for the process later must find it as it was.
        if not hasattr(os, "waitid"):
            return False
        with suppress(ChildProcessError):
            return os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WNOHANG | os.WNOWAIT) is not None
        return False

    @property
    def node(self) -> str | None:
        return None

    @property
    def is_placed(self) -> bool:
        return True

    @property
    def is_mid_message(self) -> bool:
        return self._connection.is_mid_message

    def fileno(self) -> int:
        return int(self._selector.fileno())

    def send(self, message: Record) -> None:
        if self.is_alive:
            self._connection.send(message)

    def flush(self) -> bool:
        return not self.is_alive or self._connection.flush()

    def receive(self) -> list[Any]:
        if self._how_it_ended is not None:
            return []
        ready = self._selector.select(0)
        if not ready:
            return []
        # Looked at before its last words are read, so that none can come after.
        has_exited = any(key.fd == self._pidfd for key, _ in ready)
        words = self._connection.receive()
        self._has_exited |= has_exited
        return words

    def end(self, within_s: float) -> str:
        if self._how_it_ended is None:
            self._how_it_ended = self._ended(within_s)
            self._has_exited = True
            self._connection.close()
            self._selector.close()
            if self._pidfd is not None:
                os.close(self._pidfd)
        return self._how_it_ended

    def _ended(self, within_s: float) -> str:
        fault = self._connection.fault
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=0.0 if fault else within_s)
        went_on = self._process.returncode is None and self._connection.has_hung_up
        self._kill()
        code = self._process.wait()
        if fault:
            return fault
        if went_on:
            return "closed its socket"
        return f"killed by {signal.Signals(-code).name}" if code < 0 else f"exited with {code}"

    def _kill(self) -> None:
        # The group outlives its leader if something it started still runs.
        with suppress(ProcessLookupError, PermissionError):
            if self._is_leader:
                os.killpg(self._process.pid, signal.SIGKILL)
            else:
                self._process.kill()
