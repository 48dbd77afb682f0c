"""A program while it runs in a box, seen from the outside: what it says, how long it takes, how it ends."""

import marshal
import os
import selectors
import signal
import socket
import time
from contextlib import suppress
from typing import Any

from dora_rl.envs.sandbox.inside import messages
from dora_rl.envs.sandbox.limits import BoxLimits, FinishedProgram, WhyEnded

_CHUNK = 1 << 16


class ProgramWatch:
    """One program while it runs: what it says is kept up to a limit, and its time is limited."""

    def __init__(self, control: socket.socket, limits: BoxLimits, outputs: list[int]) -> None:
        """`control` is the socket to the box, `outputs` what the program's output and errors come from."""
        self._control = control
        self._limits = limits
        self._said = {descriptor: bytearray() for descriptor in outputs}
        self._why: WhyEnded | None = None
        """The limit that it was ended for."""
        self._ended: dict[str, Any] | None = None
        """What the box said of its end."""

    def finished(self) -> FinishedProgram:
        """Wait for the end of the program and of all it said; `closed` if that of the box came first."""
        begun = time.monotonic()
        due = None if self._limits.wall_s is None else begun + self._limits.wall_s
        with selectors.DefaultSelector() as selector:
            selector.register(self._control, selectors.EVENT_READ)
            for output in self._said:
                selector.register(output, selectors.EVENT_READ)
            while selector.get_map():
                left = None if due is None or self._why else max(0.0, due - time.monotonic())
                for key, _ in selector.select(left):
                    if not self._read(key.fileobj):
                        selector.unregister(key.fileobj)
                if due is not None and time.monotonic() >= due:
                    self._end_for("wall")
        return self._outcome(time.monotonic() - begun)

    def _read(self, source: Any) -> bool:
        """Read what is there; returns whether there can be more."""
        if source is self._control:
            try:
                word = self._control.recv(messages.LONGEST)
            except ConnectionResetError:
                word = b""  # The box ended before it had read all that it was told.
            self._ended = marshal.loads(word) if word else None
            return False
        read = os.read(source, _CHUNK)
        said, limit = self._said[source], self._limits.output_bytes
        said += read[: limit - len(said)]
        if len(said) == limit and read:
            self._end_for("output")
        return bool(read)

    def _end_for(self, why: WhyEnded) -> None:
        if self._why is None and self._ended is None:
            self._why = why
            with suppress(OSError):
                self._control.send(messages.KILL)

    def _outcome(self, wall_s: float) -> FinishedProgram:
        ended = self._ended or {"ended": signal.SIGKILL, "why": "closed", "cpu_s": 0.0}
        code = os.waitstatus_to_exitcode(ended["ended"])
        stdout, stderr = (bytes(said).decode(errors="replace") for said in self._said.values())
        return FinishedProgram(
            returncode=code,
            stdout=stdout,
            stderr=stderr,
            why_ended=self._why_ended(ended["why"], code, ended["cpu_s"]),
            wall_s=wall_s,
        )

    def _why_ended(self, said: str, code: int, cpu_s: float) -> WhyEnded:
        match said:
            case "memory" | "closed":
                return said
            case "killed" if self._why is not None:
                return self._why
        limit_s = self._limits.cpu_s
        is_cpu = code == -signal.SIGKILL and limit_s is not None and cpu_s >= limit_s
        return "cpu" if is_cpu or code == -signal.SIGXCPU else "exited"
