"""Workers of this machine that are started before it is known what they will do.

To import torch takes a process seconds. A spare imports meanwhile what it will need, and becomes the first
worker of its kind that is asked for; whoever asks cannot tell the difference. Other workers are started
as ever.
"""

import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from msgspec import Struct

from dora_rl.launch.local import LOCAL, STDERR, LocalHandle
from dora_rl.launch.protocol import Place, WorkerSpec
from dora_rl.launch.spare import become


class _Spare(Struct, kw_only=True):
    worker: str
    """The module of the worker it may become."""
    place: Place
    process: subprocess.Popen[bytes]
    pipe: socket.socket


class SpareLaunch:
    """Starts workers as processes of this machine, out of spares where there are any. Implements Launch."""

    def __init__(self) -> None:
        self._spares: list[_Spare] = []

    def prepare(self, worker: str, imports: Sequence[str], place: Place | None = None) -> None:
        """Start a process that imports these modules and may become a worker of the module `worker`.

        Threads of libraries are limited as they are imported, so it becomes one whose place allows as many.
        """
        place = place or Place()
        spec = WorkerSpec(name="a spare", module="dora_rl.launch.spare", place=place)
        ours, theirs = socket.socketpair()
        with theirs:
            process = subprocess.Popen(
                [sys.executable, "-m", spec.module, f"fd:{theirs.fileno()}", *imports],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env={**os.environ, **spec.variables},
                process_group=0,
            )
        self._spares.append(_Spare(worker=worker, place=place, process=process, pipe=ours))

    def start(self, worker: WorkerSpec, replies: Any) -> LocalHandle:
        """Start a worker: a spare that fits becomes it, else a process is started."""
        spare = self._taken(worker)
        if spare is None:
            return LOCAL.start(worker, replies)
        output = STDERR if worker.log is None else os.open(worker.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        try:
            # One that died meanwhile is a worker that died at once: its owner knows what to do then.
            with suppress(BrokenPipeError, ConnectionResetError):
                become(spare.pipe, worker.module, worker.variables, output)
        finally:
            if output != STDERR:
                os.close(output)
        return LocalHandle(spare.process, spare.pipe, replies, is_leader=True)

    def _taken(self, worker: WorkerSpec) -> _Spare | None:
        for spare in self._spares:
            has_limits = spare.place.thread_limits == worker.place.thread_limits
            if spare.worker == worker.module and has_limits and not worker.environment:
                self._spares.remove(spare)
                return spare
        return None

    def close(self) -> None:
        """End the spares that nobody needed."""
        for spare in self._spares:
            LocalHandle(spare.process, spare.pipe, Any, is_leader=True).end(within_s=0.0)
        self._spares.clear()
