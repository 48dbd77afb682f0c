"""A worker as its owner sees it: messages out, messages in, and whether it is still there.

`Handle` and `Launch` are the seam; `LocalProcess` is a process of this machine behind a socket pair. Nothing
here blocks but `end`. A worker whose owner is gone ends itself, so nothing is left behind by a crash.
"""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

import msgspec

from dora_rl.envs.scoring.wire import Frames, framed
from dora_rl.run.messages import Message

_RECEIVE_BYTES = 1 << 20


class Handle(Protocol):
    """One worker."""

    def send(self, message: Message) -> None:
        """Tell it something; what it cannot take at once is kept and sent later."""
        ...

    def flush(self) -> bool:
        """Send what was kept; False while something is left."""
        ...

    def receive(self) -> list[Any]:
        """Everything it said since."""
        ...

    def fileno(self) -> int:
        """Readable when it said something, or died."""
        ...

    @property
    def is_alive(self) -> bool:
        """False as soon as it was noticed that it is gone."""
        ...

    def end(self, within_s: float) -> str:
        """Wait for it to end, kill it if it does not, and say how it ended."""
        ...


class Launch(Protocol):
    """Starts workers: as processes of this machine, or as actors of a cluster."""

    def __call__(self, module: str, word: Any, *, log: Path, environment: Mapping[str, str]) -> Handle:
        """A worker that runs a module of `runtime.workers`, speaks `word`s and is told what to begin with."""
        ...


class LocalProcess:
    """A Python process of this machine. Speaks Handle; the class is a Launch."""

    def __init__(self, module: str, word: Any, *, log: Path, environment: Mapping[str, str]) -> None:
        self._pipe, theirs = socket.socketpair()
        with theirs, log.open("ab") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", module, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env={**os.environ, **environment},
                # A group of its own: killed with all it started, and not by the terminal's interrupt.
                start_new_session=True,
            )
        self._pipe.setblocking(False)
        self._decode = msgspec.msgpack.Decoder(word).decode
        self._frames, self._unsent = Frames(), bytearray()
        self._is_alive = True

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        return self._is_alive

    def fileno(self) -> int:
        return self._pipe.fileno()

    def send(self, message: Message) -> None:
        if self._is_alive:
            self._unsent += framed(message)
            self.flush()

    def flush(self) -> bool:
        try:
            while self._unsent:
                del self._unsent[: self._pipe.send(self._unsent)]
        except BlockingIOError:
            return False
        except (BrokenPipeError, ConnectionResetError):
            self._unsent.clear()  # Its death is noticed by whoever reads.
        return True

    def receive(self) -> list[Any]:
        words: list[Any] = []
        try:
            while received := self._pipe.recv(_RECEIVE_BYTES):
                words += map(self._decode, self._frames.feed(received))
            self._is_alive = False
        except BlockingIOError:
            pass
        except ConnectionResetError:
            self._is_alive = False
        return words

    def end(self, within_s: float) -> str:
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=within_s)
        self.kill()
        self._pipe.close()
        code = self._process.returncode
        return f"killed by {signal.Signals(-code).name}" if code < 0 else f"exited with {code}"

    def kill(self) -> None:
        """End it and all it started, at once."""
        self._is_alive = False
        # The group outlives its leader if something it started still runs.
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


def torch_environment(num_threads: int) -> dict[str, str]:
    """What keeps torch and the libraries below it to so many threads."""
    names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
    return {**dict.fromkeys(names, str(num_threads)), "TOKENIZERS_PARALLELISM": "false"}
