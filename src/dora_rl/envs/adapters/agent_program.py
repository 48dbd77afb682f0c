"""An agent that is a program: started in a process group of its own, listened to, ended with its episode.

A second process, one for all agents of a worker, ends what is left of them when the worker is gone: a worker
that is killed can end nobody.
"""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from pathlib import Path

from dora_rl.core.errors import DoraError

_REAPER = """
import os, signal, sys
alive = set()
for line in sys.stdin:
    (alive.add if line[0] == "+" else alive.discard)(int(line[1:]))
for group in alive:
    try:
        os.killpg(group, signal.SIGKILL)
    except OSError:
        pass
"""
"""Reads the groups that begin and end, and kills those left when nobody can tell it of another."""
_GATE = 'read -r _ && exec "$@"'
"""Becomes the program when a first line comes: when the other process knows of it, and not if the worker dies
before."""
_SHOWN = 2000


class AgentFailed(DoraError):
    """An agent's program could not be started, or ended with a failure."""


class AgentPrograms:
    """Runs programs, each in a group of processes that ends with it."""

    def __init__(self, *, output_bytes: int) -> None:
        """`output_bytes` is how much of the end of a program's output is kept."""
        self._output_bytes = output_bytes
        self._reaper: subprocess.Popen[bytes] | None = None

    async def run(
        self, argv: Sequence[str], *, stdin: bytes, variables: Mapping[str, str], directory: Path | None
    ) -> str:
        """What a program prints to its end; raises AgentFailed where it fails. If cancelled it is killed."""
        transport, heard = await self._started(argv, variables, directory)
        with closing(transport):
            await self._heard_out(transport, heard, stdin)
        code, stdout, stderr = transport.get_returncode(), heard.text(1), heard.text(2)
        if code:
            how = f"ended with code {code}" if code > 0 else f"was ended by {signal.Signals(-code).name}"
            raise AgentFailed(f"the agent's program {how}:\n{(stderr or stdout)[-_SHOWN:].strip()}")
        return stdout

    async def _heard_out(self, transport: asyncio.SubprocessTransport, heard: "_Heard", stdin: bytes) -> None:
        """Feed a program and wait for its end, and that of whatever it started."""
        group = transport.get_pid()
        self._tell(f"+{group}")
        try:
            given = transport.get_pipe_transport(0)
            assert isinstance(given, asyncio.WriteTransport), "a program has an input"
            given.write(b"\n" + stdin)
            given.close()
            await heard.has_exited.wait()
        finally:
            # What it left behind ends too, and with it the last writer of its output.
            _kill(group)
            self._tell(f"-{group}")
            await heard.is_over.wait()

    def close(self) -> None:
        """End the process that ends what is left of agents, and so those that are left."""
        if self._reaper is not None:
            self._reaper.communicate()

    async def _started(
        self, argv: Sequence[str], variables: Mapping[str, str], directory: Path | None
    ) -> "tuple[asyncio.SubprocessTransport, _Heard]":
        try:
            return await asyncio.get_running_loop().subprocess_exec(
                lambda: _Heard(self._output_bytes),
                *("/bin/sh", "-c", _GATE, "agent", *argv),
                env={**os.environ, **variables},
                cwd=directory,
                process_group=0,
            )
        except OSError as error:
            where = "" if directory is None else f" in {directory}"
            raise AgentFailed(f"the agent's program cannot be started{where}: {error.strerror}") from error

    def _tell(self, word: str) -> None:
        """Tell the process that ends what is left of agents, and start it if there is none."""
        if self._reaper is None or self._reaper.poll() is not None:
            self._reaper = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", _REAPER],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                # Whoever kills the worker's group does not kill it.
                process_group=0,
            )
        assert self._reaper.stdin is not None, "it is told by its input"
        self._reaper.stdin.write(f"{word}\n".encode())
        self._reaper.stdin.flush()


def _kill(group: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL)


class _Heard(asyncio.SubprocessProtocol):
    """The end of what a program writes, and whether it is over; all is read, or the program would wait."""

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._kept = {1: bytearray(), 2: bytearray()}
        self.has_exited = asyncio.Event()
        self.is_over = asyncio.Event()
        """Whether nobody writes any more."""

    def text(self, fd: int) -> str:
        return self._kept[fd].decode(errors="replace")

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        self._kept[fd] += data
        del self._kept[fd][: -self._most_bytes]

    def process_exited(self) -> None:
        self.has_exited.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_over.set()
