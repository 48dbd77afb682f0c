"""Workers that are not our children and dial back: the launch of a cluster, on one machine.

An agent starts the worker, which connects to a port of ours by TCP and says the key it was given; whoever
else connects is hung up on. Messages do not go through the agent.
"""

import os
import secrets
import selectors
import signal
import socket
import subprocess
import sys
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from dora_rl.core.record import Record
from dora_rl.launch.connection import Connection
from dora_rl.launch.messages import KEY_VARIABLE, Hello
from dora_rl.launch.protocol import WorkerSpec

_AGENT = Path(__file__).with_name("node_agent.py")


class DialledLaunch:
    """Starts workers through agents. Speaks Launch."""

    def __init__(self) -> None:
        self.started: list[tuple[WorkerSpec, DialledHandle]] = []

    def start(self, worker: WorkerSpec, replies: Any) -> "DialledHandle":
        listener = socket.create_server(("127.0.0.1", 0))
        host, port = listener.getsockname()
        key = secrets.token_hex(16)
        with ExitStack() as opened:
            output = 2 if worker.log is None else opened.enter_context(open(worker.log, "ab"))
            agent = subprocess.Popen(
                [sys.executable, str(_AGENT), worker.module, f"tcp:{host}:{port}"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=output,
                env={**os.environ, **worker.variables, KEY_VARIABLE: key},
                start_new_session=True,
            )
        handle = DialledHandle(agent, listener, key, replies)
        self.started.append((worker, handle))
        return handle


class DialledHandle:
    """A worker behind an agent. Speaks Handle."""

    def __init__(
        self, agent: subprocess.Popen[bytes], listener: socket.socket, key: str, replies: Any
    ) -> None:
        assert agent.stdin is not None
        assert agent.stdout is not None
        self._agent, self._input, self._output = agent, agent.stdin, agent.stdout
        self._listener = listener
        self._key = key
        self._replies = Hello | replies
        self._selector = selectors.DefaultSelector()
        listener.setblocking(False)
        os.set_blocking(self._output.fileno(), False)
        self._selector.register(listener, selectors.EVENT_READ)
        self._selector.register(self._output, selectors.EVENT_READ)
        self._reported = b""
        self._is_agent_gone = False
        self._callers: list[Connection] = []
        """Who connected and has not said a key yet."""
        self._worker: Connection | None = None
        self._waiting: list[Record] = []
        """Told before it was there."""
        self._how_it_ended: str | None = None

    @property
    def port(self) -> int:
        return int(self._listener.getsockname()[1])

    @property
    def pid(self) -> int | None:
        self._hear_agent()
        return int(self._lines[0]) if self._lines else None

    @property
    def is_alive(self) -> bool:
        if self._worker is not None:
            return self._how_it_ended is None and not self._worker.has_hung_up
        return self._how_it_ended is None and not self._is_agent_gone and len(self._lines) < 2

    @property
    def is_stopped(self) -> bool:
        return False

    @property
    def is_mid_message(self) -> bool:
        return self._worker is not None and self._worker.is_mid_message

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
        self._hear_agent()
        return self._worker.receive() if self._worker is not None else self._answer()

    def end(self, within_s: float) -> str:
        if self._how_it_ended is None:
            self._how_it_ended = self._ended(within_s)
            for each in (*self._callers, *([self._worker] if self._worker else [])):
                each.close()
            self._listener.close()
            self._output.close()
            self._selector.close()
        return self._how_it_ended

    # --- who calls ------------------------------------------------------------------------------

    def _answer(self) -> list[Any]:
        """Let in whoever has the key; what else it said already."""
        with suppress(BlockingIOError):
            while True:
                pipe, _ = self._listener.accept()
                pipe.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._callers.append(Connection(pipe, self._replies, self._selector))
        for caller in list(self._callers):
            words = caller.receive()
            if words and self._has_key(words[0]):
                self._let_in(caller)
                return words[1:]
            if words or caller.has_hung_up:
                self._callers.remove(caller)
                caller.close()
        return []

    def _has_key(self, word: Any) -> bool:
        return isinstance(word, Hello) and secrets.compare_digest(word.key, self._key)

    def _let_in(self, caller: Connection) -> None:
        self._worker = caller
        self._callers.remove(caller)
        self._selector.unregister(self._listener)
        for message in self._waiting:
            caller.send(message)
        self._waiting.clear()

    # --- the agent ------------------------------------------------------------------------------

    @property
    def _lines(self) -> list[bytes]:
        return self._reported.split(b"\n")[:-1]

    def _hear_agent(self) -> None:
        """Its end is heard of once: a descriptor at its end would be readable for ever."""
        if self._is_agent_gone or self._how_it_ended is not None:
            return
        with suppress(BlockingIOError):
            while received := os.read(self._output.fileno(), 4096):
                self._reported += received
            self._is_agent_gone = True
            self._selector.unregister(self._output)

    def _ended(self, within_s: float) -> str:
        with selectors.DefaultSelector() as selector:
            selector.register(self._output, selectors.EVENT_READ)
            while len(self._lines) < 2 and not self._is_agent_gone and selector.select(within_s):
                self._hear_agent()
        went_on = len(self._lines) < 2 and self._worker is not None and self._worker.has_hung_up
        self._input.close()
        self._agent.wait()
        self._hear_agent()
        if self._worker is not None and self._worker.fault:
            return self._worker.fault
        if went_on:
            return "closed its socket"
        if len(self._lines) < 2:
            return "was lost with its agent"
        code = int(self._lines[1])
        return f"killed by {signal.Signals(-code).name}" if code < 0 else f"exited with {code}"
