"""One box, from the outside: programs are run in it one at a time, and see the files of those before.

Everything blocks; in a coroutine use `asyncio.to_thread`. A box may be closed from any thread, which ends
what runs in it. If its owner dies, whatever the way, so does everything in the box.
"""

import fcntl
import marshal
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path, PurePosixPath
from typing import Any

import msgspec

from dora_rl.core.errors import DoraError
from dora_rl.envs.sandbox.inside import messages, root
from dora_rl.envs.sandbox.inside.interpreter import received
from dora_rl.envs.sandbox.limits import BoxLimits, FinishedProgram
from dora_rl.envs.sandbox.program_watch import ProgramWatch

Content = str | bytes

_BEGIN = "import sys; sys.path.insert(0, sys.argv[1]); from inside.main import main; main(int(sys.argv[2]))"
_START_S = 30.0
_END_S = 5.0


class BoxFailed(DoraError):
    """A box could not be made, or ended while something ran in it."""


class Box:
    """Namespaces of their own, and the process that runs programs in them."""

    def __init__(
        self,
        limits: BoxLimits,
        *,
        is_isolated: bool = True,
        is_warm: bool = False,
        readable: Sequence[str] = (),
        ports: Sequence[int] = (),
    ) -> None:
        """Make a box; raises BoxFailed with the reason where the system does not let it.

        `is_isolated`: false for no namespaces, so that limits are all there is. `is_warm`: keep a Python
        ready. `readable`: paths that programs may read beside the system and this Python. `ports`: ports of
        the box's loopback that are listened on, for `listeners`.
        """
        self.limits = limits
        self._home = root.HOME if is_isolated else tempfile.mkdtemp(prefix="dora-box-")
        self._is_isolated = is_isolated
        self._running = threading.Lock()
        self._is_closed = False
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", _BEGIN, str(Path(__file__).parent), str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                cwd="/",
                # Nothing of the owner's environment: the box's processes could be asked for it.
                env={"LANG": "C.UTF-8"},
            )
        spec = {
            "is_isolated": is_isolated,
            "is_warm": is_warm,
            "limits": msgspec.structs.asdict(limits),
            "readable": _really([sys.prefix, sys.base_prefix, *readable]),
            "ports": list(ports),
            "python": sys.executable,
            "home": self._home,
            "environment": _environment(self._home),
        }
        try:
            self.listeners = dict(zip(ports, self._opened(spec), strict=True))
            """Sockets that accept what programs say to a port of the box's loopback."""
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> "Box":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def is_alive(self) -> bool:
        """Whether programs can be run in it."""
        return not self._is_closed and self._process.poll() is None

    def run(
        self,
        argv: Sequence[str],
        *,
        stdin: Content = b"",
        files: Mapping[str, Content] | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> FinishedProgram:
        """Run a program to its end, or to a limit; all it started ends with it.

        `files` are written before, by their names below the directory it starts in. What is secret belongs
        into `environment`: every process of the box can read `argv`.
        """
        return self._run(messages.RUN_PROGRAM, {"argv": list(argv)}, stdin, files, environment)

    def execute(
        self,
        code: str,
        *,
        stdin: Content = b"",
        files: Mapping[str, Content] | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> FinishedProgram:
        """Run Python code as a program of its own; otherwise as `run` does."""
        return self._run(messages.RUN_PYTHON, {"code": code}, stdin, files, environment)

    def run_python(self, code: str) -> str:
        """Run Python code and get what it prints. Files that it writes are kept for the next call.

        Args:
            code: The code, a whole program.
        """
        return self.execute(code).text

    def close(self) -> None:
        """End the box with everything that runs in it."""
        self._is_closed = True
        with suppress(OSError):
            self._control.shutdown(socket.SHUT_RDWR)
        try:
            self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        with self._running:
            self._control.close()
        for listener in getattr(self, "listeners", {}).values():
            listener.close()
        if not self._is_isolated:
            shutil.rmtree(self._home, ignore_errors=True)

    # --- talking to the box ---------------------------------------------------------------------

    def _opened(self, spec: dict[str, Any]) -> list[socket.socket]:
        self._control.settimeout(_START_S)
        try:
            self._control.send(marshal.dumps(spec))
            word, descriptors = received(self._control, messages.LONGEST, len(spec["ports"]))
        except TimeoutError as error:
            raise BoxFailed(f"a box was not ready within {_START_S:g} s") from error
        except OSError as error:
            raise BoxFailed(f"a box ended before it was ready: {error}") from error
        said = marshal.loads(word) if word else {"failed": "its process ended"}
        if "failed" in said:
            raise BoxFailed(said["failed"])
        return [socket.socket(fileno=each) for each in descriptors]

    def _run(
        self,
        kind: bytes,
        job: dict[str, Any],
        stdin: Content,
        files: Mapping[str, Content] | None,
        environment: Mapping[str, str] | None,
    ) -> FinishedProgram:
        job["files"] = {_inner_name(name): _as_bytes(content) for name, content in (files or {}).items()}
        job["environment"] = dict(environment or {})
        if not self._running.acquire(blocking=False):
            raise RuntimeError("a box runs one program at a time: open another beside it")
        try:
            if self._is_closed:
                raise BoxFailed("the box is closed")
            with ExitStack() as opened:
                outputs = self._begin(opened, kind, marshal.dumps(job), _as_bytes(stdin))
                finished = ProgramWatch(self._control, self.limits, outputs).finished()
            if finished.why_ended == "closed" and not self._is_closed:
                raise BoxFailed("the box ended while a program ran in it")
            return finished
        finally:
            self._running.release()

    def _begin(self, opened: ExitStack, kind: bytes, job: bytes, stdin: bytes) -> list[int]:
        """Hand a job over; returns what its output and its errors are read from."""
        given = [_in_memory(job), _in_memory(stdin)]
        outputs = []
        for _ in range(2):
            reading, writing = os.pipe()
            opened.callback(os.close, reading)
            outputs.append(reading)
            given.append(writing)
        try:
            socket.send_fds(self._control, [kind], given)
        except OSError as error:
            raise BoxFailed(f"the box has ended: {error}") from error
        finally:
            for each in given:
                os.close(each)
        return outputs


def _environment(home: str) -> dict[str, str]:
    path = [str(Path(sys.executable).parent), "/usr/local/bin", "/usr/bin", "/bin"]
    return {"PATH": os.pathsep.join(path), "HOME": home, "TMPDIR": home, "LANG": "C.UTF-8"}


def _really(paths: Sequence[str]) -> list[tuple[str, str]]:
    """Paths, each with the place where it really is, and those places too."""
    found: dict[str, str] = {}
    for path in paths:
        shown, real = os.path.abspath(path), os.path.realpath(path)
        found |= {shown: real, real: real}
    return list(found.items())


def _inner_name(name: str) -> str:
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or not path.parts:
        raise ValueError(f"a file of a box is named below its directory, not {name!r}")
    return str(path)


def _as_bytes(content: Content) -> bytes:
    return content.encode() if isinstance(content, str) else content


def _in_memory(content: bytes) -> int:
    """A descriptor to read these bytes from."""
    descriptor = os.memfd_create("box", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    with open(descriptor, "wb", closefd=False) as file:
        file.write(content)
    # Or a program could keep there what no limit counts.
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor
