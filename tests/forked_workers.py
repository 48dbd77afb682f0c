"""Workers that begin with torch imported: each is forked from a process that has imported it once.

What a preparing worker imports takes five seconds of a core, and a mistake is found in a tenth of one. A
forked worker is a process as any other (its own group, directory, environment, output and end), so nothing
that tests say of it is different. Tests of how workers are started use the launch as it is.
"""

import multiprocessing
import os
import socket
import subprocess
from multiprocessing.connection import Connection
from typing import Any

from dora_rl.launch import local
from dora_rl.launch.local import LocalHandle, LocalLaunch
from dora_rl.launch.protocol import WorkerSpec

# The compiler, because a warm start under a limit of two seconds would import it otherwise.
_IMPORTED = ["dora_rl.prepare.planner", "dora_rl.prepare.sampling_inputs", "torch._dynamo"]
_CHILD = """
import os, runpy, sys
os.setpgid(0, 0)
os.chdir(directory)
os.environ.clear()
os.environ.update(environment)
for number in (1, 2):
    os.dup2(output.fileno(), number)
sys.argv = [module, f"fd:{pipe.detach()}"]
runpy.run_module(module, run_name="__main__", alter_sys=True)
"""


class ForkedProcess:
    """Has what a handle asks of a subprocess.Popen."""

    def __init__(self, process: Any) -> None:
        self._process = process
        self.pid: int = process.pid

    @property
    def returncode(self) -> int | None:
        found: int | None = self._process.exitcode
        return found

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        if self.returncode is None:
            raise subprocess.TimeoutExpired("a forked worker", timeout or 0.0)
        return self.returncode

    def kill(self) -> None:
        self._process.kill()


class ForkedPreparation:
    """Starts preparing workers by forking, and all others as the launch of this machine does."""

    def __init__(self) -> None:
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(_IMPORTED)
        self._start = LocalLaunch.start

    def start(self, launch: LocalLaunch, worker: WorkerSpec, replies: Any) -> LocalHandle:
        """Has the form of LocalLaunch.start, in whose place it is put."""
        if worker.module != "dora_rl.prepare.worker":
            return self._start(launch, worker, replies)
        assert worker.log is None, "a preparing worker speaks on its owner's stderr"
        ours, theirs = socket.socketpair()
        output = Connection(os.dup(local.STDERR))
        given = {
            "module": worker.module,
            "pipe": theirs,
            "output": output,
            "directory": os.getcwd(),
            "environment": {**os.environ, **worker.variables},
        }
        with theirs, output:
            process = self._context.Process(target=exec, args=(_CHILD, given), daemon=True)
            process.start()
        return LocalHandle(ForkedProcess(process), ours, replies, is_leader=True)  # type: ignore[arg-type]
