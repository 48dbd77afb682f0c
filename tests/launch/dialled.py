"""Workers that are not our children and dial back: the launch of a cluster, on one machine.

An agent is a process of its own, told its order by its standard input. Messages do not go through it.
"""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec

from dora_rl.launch.dialled import DialledHandle, Invitation
from dora_rl.launch.protocol import WorkerSpec

_AGENT = Path(__file__).with_name("node_agent.py")


class DialledLaunch:
    """Starts workers through agents. Implements Launch."""

    def __init__(self) -> None:
        self.started: list[tuple[WorkerSpec, DialledHandle]] = []
        self.agents: list[AgentProcess] = []

    def start(self, worker: WorkerSpec, replies: Any) -> DialledHandle:
        invitation = Invitation(worker, "127.0.0.1")
        self.agents.append(AgentProcess(invitation))
        self.started.append((worker, DialledHandle(worker, invitation, replies, self.agents[-1])))
        return self.started[-1][1]


class AgentProcess:
    """An agent that is a process of this machine. Implements AgentStarter."""

    def __init__(self, invitation: Invitation) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(_AGENT)], stdin=subprocess.PIPE, start_new_session=True
        )
        assert self._process.stdin is not None
        self._process.stdin.write(msgspec.msgpack.encode(invitation.order))
        self._process.stdin.close()
        self._end = os.pidfd_open(self._process.pid)

    @property
    def pid(self) -> int:
        return self._process.pid

    def fileno(self) -> int:
        return self._end

    def failure(self) -> str | None:
        return None if self._process.poll() is None else "had no agent"

    def release(self) -> None:
        self._process.terminate()
        self._process.wait()

    def close(self) -> None:
        os.close(self._end)
