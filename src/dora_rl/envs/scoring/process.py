"""The parent's end of one process that scores.

Never blocks: what cannot be sent at once waits here. Says that the process is gone as soon as it is,
whether or not something it started still holds the pipe.
"""

import os
import select
import signal
import socket
import subprocess
import sys
from contextlib import ExitStack, suppress
from pathlib import Path

import msgspec

from dora_rl.envs.config import ScoringConfig
from dora_rl.envs.scoring.messages import SetUp, WorkerInput, WorkerOutput
from dora_rl.envs.scoring.wire import Frames, framed

_RECEIVE_BYTES = 1 << 18


class WorkerProcess:
    """A started process and its pipe."""

    def __init__(self, config: ScoringConfig, log: Path | None = None) -> None:
        """What a reward function prints goes to the log; without one to stderr, for it is no result."""
        self.pipe, theirs = socket.socketpair()
        with theirs, ExitStack() as opened:
            output = 2 if log is None else opened.enter_context(log.open("ab"))
            self._process = subprocess.Popen(
                [sys.executable, "-m", "dora_rl.envs.scoring.worker", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                # A group of its own: killed with all it started, and not by the terminal's interrupt.
                start_new_session=True,
            )
        self.pipe.setblocking(False)
        self.pidfd = os.pidfd_open(self._process.pid) if hasattr(os, "pidfd_open") else None
        self.has_hung_up = False
        self._frames, self._unsent = Frames(), bytearray()
        self._decoder: msgspec.msgpack.Decoder[WorkerOutput] = msgspec.msgpack.Decoder(WorkerOutput)
        self.send(
            SetUp(rewards=config.rewards, time_limit_s=config.time_limit_s, search_path=tuple(sys.path))
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def has_unsent(self) -> bool:
        return bool(self._unsent)

    @property
    def is_answering(self) -> bool:
        """A message has come in part."""
        return not self._frames.is_between

    @property
    def is_gone(self) -> bool:
        return self.has_hung_up or self._has_exited()

    def exit_reason(self) -> str:
        """How a process that is gone ended, in words."""
        try:
            # Its pipe closes a moment before it can be waited for.
            code = self._process.wait(timeout=1.0)
        except subprocess.TimeoutExpired:
            return "closed its pipe"
        return f"killed by {signal.Signals(-code).name}" if code < 0 else f"exited with {code}"

    def send(self, message: WorkerInput) -> None:
        self._unsent += framed(message)
        self.flush()

    def flush(self) -> None:
        """Send what the pipe takes."""
        # A process that died is noticed by whoever reads.
        with suppress(BlockingIOError, BrokenPipeError, ConnectionResetError):
            while self._unsent:
                del self._unsent[: self.pipe.send(self._unsent)]

    def receive(self) -> list[WorkerOutput]:
        """Everything that has come."""
        messages: list[WorkerOutput] = []
        try:
            while received := self.pipe.recv(_RECEIVE_BYTES):
                messages += map(self._decoder.decode, self._frames.feed(received))
            self.has_hung_up = True
        except BlockingIOError:
            pass
        except ConnectionResetError:
            self.has_hung_up = True
        return messages

    def kill(self) -> None:
        """End the process and all it started; nothing is heard from it afterwards."""
        # The group outlives its leader if something it started still runs.
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def close(self) -> None:
        self.pipe.close()
        if self.pidfd is not None:
            os.close(self.pidfd)

    def _has_exited(self) -> bool:
        if self.pidfd is None:
            return False
        waiting = select.poll()
        waiting.register(self.pidfd, select.POLLIN)
        return bool(waiting.poll(0))
