"""Starts a worker that starts a process, and waits to be killed: `python owner.py KIND`.

Of the kind `stopped`, the worker is stopped before it could do anything.
"""

import os
import signal
import sys
import time
from pathlib import Path

from dialled import DialledLaunch
from echo_worker import Reply, Spawn, Spawned

from dora_rl.launch.local import LocalLaunch
from dora_rl.launch.protocol import Launch, WorkerSpec
from dora_rl.launch.waiting import wait_for


def main(kind: str) -> None:
    launch: Launch = DialledLaunch() if kind == "dialled" else LocalLaunch()
    path = os.pathsep.join(filter(None, (str(Path(__file__).parent), os.environ.get("PYTHONPATH"))))
    worker = WorkerSpec(name="echo", module="echo_worker", environment={"PYTHONPATH": path})
    handle = launch.start(worker, Reply)
    if kind == "stopped":
        assert handle.pid is not None
        os.kill(handle.pid, signal.SIGSTOP)
        # The system wakes what is stopped when its owner dies, not what is about to stop.
        while not handle.is_stopped:
            time.sleep(0.001)
        print(handle.pid, flush=True)
        time.sleep(600)
    handle.send(Spawn(holds_socket=False))
    while not (words := handle.receive()):
        wait_for([handle], [], 30.0)
    (spawned,) = words
    assert isinstance(spawned, Spawned)
    print(handle.pid, spawned.pid, flush=True)  # type: ignore[attr-defined]
    time.sleep(600)


if __name__ == "__main__":
    main(sys.argv[1])
