"""A process that will become a worker: `python -m dora_rl.launch.spare fd:N MODULE...`.

It imports modules that workers of its kind need, for as long as that takes, and then waits on its socket to
be told which worker it is. From there on it is that worker, and the socket is the worker's.
"""

import json
import os
import runpy
import socket
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from typing import Any

from dora_rl.launch.channel import search_where_owner_does, wake_when_owner_dies

_LENGTH_BYTES = 4


def become(pipe: socket.socket, module: str, variables: dict[str, str], output: int) -> None:
    """Tell the spare at the other end of its socket which worker it is, and the descriptor it writes to."""
    told = json.dumps({"module": module, "variables": variables}).encode()
    socket.send_fds(pipe, [len(told).to_bytes(_LENGTH_BYTES, "big")], [output])
    pipe.sendall(told)


def main(address: str, modules: Sequence[str]) -> None:
    """Import the modules, wait to be told, and be that worker."""
    search_where_owner_does()
    wake_when_owner_dies()
    pipe = socket.socket(fileno=int(address.removeprefix("fd:")))
    for module in modules:
        # What is missing is said by the worker that needs it.
        with suppress(ImportError):
            import_module(module)
    told = _told(pipe)
    if told is None:
        return  # Nobody needed it.
    os.environ |= told["variables"]
    search_where_owner_does()
    sys.argv[1:] = [f"fd:{pipe.detach()}"]
    runpy.run_module(told["module"], run_name="__main__", alter_sys=True)


def _told(pipe: socket.socket) -> dict[str, Any] | None:
    """What `become` says; None if its owner has gone."""
    head, outputs, _, _ = socket.recv_fds(pipe, _LENGTH_BYTES, 1)
    if not head:
        return None
    for standard in (1, 2):
        os.dup2(outputs[0], standard)
    os.close(outputs[0])
    length = int.from_bytes(head, "big")
    told: dict[str, Any] = json.loads(pipe.recv(length, socket.MSG_WAITALL))
    return told


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
