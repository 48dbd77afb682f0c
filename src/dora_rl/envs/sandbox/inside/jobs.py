"""Programs that are run in a box, one at a time: started, watched, ended with all they started.

    told     RUN_PROGRAM, RUN_PYTHON, each with four descriptors: the job, and the program's input, output and
             errors; KILL; the end of the socket ends the box
    said     {"ended": status as of wait, "why": "exited" | "memory" | "killed", "cpu_s": seconds}

In a box with namespaces this is process 1: nothing a program does can end it, and when it ends so does
everything in the box.
"""

from __future__ import annotations

import marshal
import os
import select
import socket

from . import confine
from .interpreter import received, write_files
from .messages import KILL, NUM_DESCRIPTORS, RUN_PYTHON
from .processes import Descendants, Namespaced

TYPE_CHECKING = False
if TYPE_CHECKING:  # Whatever is imported delays the start of a box.
    from collections.abc import Callable
    from typing import Any

_LOOK_S = 0.1
"""Seconds between two looks at what the programs of a box take."""


class Jobs:
    """Runs what the owner of a box says."""

    def __init__(self, control: socket.socket, spec: dict[str, Any], interpreter: str) -> None:
        """`interpreter` is the text of the module that waits for code."""
        self._control = control
        self._spec = spec
        self._limits: dict[str, Any] = spec["limits"]
        self._interpreter = interpreter
        self._others = Namespaced() if spec["is_isolated"] else Descendants()
        self._waiting: tuple[int, socket.socket] | None = None
        """The Python that waits for its code, and where it is given it."""

    def serve(self) -> None:
        """Run jobs until the owner is gone."""
        while True:
            if self._spec["is_warm"] and self._waiting is None:
                self._waiting = self._start_interpreter()
            message, descriptors = received(self._control, 64, NUM_DESCRIPTORS)
            if not message:
                return
            if message == KILL:
                continue  # It crossed the end of what it was for.
            program = self._start(message, descriptors)
            for each in descriptors:
                os.close(each)
            if not self._watched(program):
                return

    # --- starting -------------------------------------------------------------------------------

    def _start(self, message: bytes, descriptors: list[int]) -> int:
        if message == RUN_PYTHON:
            program, pipe = self._waiting or self._start_interpreter()
            self._waiting = None
            with pipe:
                socket.send_fds(pipe, [message], descriptors)
            return program
        program = os.fork()
        if not program:
            self._become(lambda: self._run_program(descriptors))
        return program

    def _start_interpreter(self) -> tuple[int, socket.socket]:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        program = os.fork()
        if not program:
            self._become(lambda: self._run_interpreter(theirs))
        theirs.close()
        return program, ours

    def _become(self, what: Callable[[], None]) -> None:
        """In a new process, give up every right and be a program; never returns."""
        try:
            os.setsid()
            os.chdir(self._spec["home"])
            confine.reset_signals()
            confine.set_limits(self._limits)
            if self._spec["is_isolated"]:
                confine.limit_processes(int(self._limits["processes"]))
                confine.give_up_rights()
            what()
        except BaseException as error:
            os.write(2, f"the program could not be started: {error}\n".encode())
        finally:
            os._exit(127)

    def _run_program(self, descriptors: list[int]) -> None:
        for target, each in enumerate(descriptors[1:]):
            os.dup2(each, target)
        with open(descriptors[0], "rb", closefd=False) as file:
            job = marshal.loads(file.read())
        write_files(job["files"])
        environment = self._spec["environment"] | job["environment"]
        os.execvpe(job["argv"][0], job["argv"], environment)

    def _run_interpreter(self, pipe: socket.socket) -> None:
        nowhere = os.open(os.devnull, os.O_RDWR)
        for target in range(3):
            os.dup2(nowhere, target)
        os.set_inheritable(pipe.fileno(), True)
        python = self._spec["python"]
        # Isolated from its surroundings, in UTF-8, and nothing it said is lost if it is ended.
        flags = ("-I", "-X", "utf8", "-u")
        argv = [python, *flags, "-c", self._interpreter, str(pipe.fileno())]
        os.execve(python, argv, self._spec["environment"])

    # --- watching -------------------------------------------------------------------------------

    def _watched(self, program: int) -> bool:
        """Wait for a program's end, or end it; say how it ended. Returns whether the owner is still there."""
        why, is_owned, ended = "exited", True, None
        end = os.pidfd_open(program)
        poll = select.poll()
        poll.register(self._control, select.POLLIN)
        poll.register(end, select.POLLIN)
        while ended is None:
            ready = {descriptor for descriptor, _ in poll.poll(1e3 * _LOOK_S)}
            if self._control.fileno() in ready:
                is_owned = bool(self._control.recv(64))
                why = "killed"
            elif self._others.used_bytes() > self._limits["memory_bytes"]:
                why = "memory"
            if why != "exited":
                self._others.kill()
            ended = self._reaped(program, wait=why != "exited")
        os.close(end)
        self._others.kill()
        self._reaped(None, wait=True)
        if self._waiting is not None:
            self._waiting[1].close()
            self._waiting = None
        status, cpu_s = ended
        if is_owned:
            self._control.send(marshal.dumps({"ended": status, "why": why, "cpu_s": cpu_s}))
        return is_owned

    def _reaped(self, program: int | None, *, wait: bool) -> tuple[int, float] | None:
        """Take away processes that ended, all of them if told to wait; returns how `program` did."""
        found = None
        while True:
            try:
                pid, status, used = os.wait4(-1, 0 if wait else os.WNOHANG)
            except ChildProcessError:
                return found
            if not pid:
                return found
            if pid == program:
                found = (status, used.ru_utime + used.ru_stime)
