"""The worker's end of the socket: a thread reads, any thread may send.

When the owner is gone the process ends at once with its group, whatever it is doing: all it has made durable
is durable, and the rest would be in nobody's books. So does one that dialled its owner when the agent that
started it is gone. So does one that is stopped by SIGSTOP: the system wakes it when its parent dies, or it
would keep its files, locks and memory for ever. A worker that is a thread of its owner only stops.
"""

import ctypes
import os
import queue
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, NoReturn

import msgspec

from dora_rl.core.record import Record
from dora_rl.launch.dial import dial
from dora_rl.launch.framing import Frames, framed
from dora_rl.launch.messages import (
    KEY_VARIABLE,
    LIFELINE_VARIABLE,
    SEARCH_PATH_VARIABLE,
    Alive,
    Hello,
    Stop,
)

_RECEIVE_BYTES = 1 << 20
_SIGN_OF_LIFE_S = 1.0
_PR_SET_PDEATHSIG = 1


class Channel:
    """The worker's end of its socket: commands from the owner, messages to the owner."""

    def __init__(self, pipe: socket.socket, commands: Any, *, is_thread: bool = False) -> None:
        """`is_thread`: the owner is this very process, which must not end with its worker."""
        self._pipe = pipe
        self._is_thread = is_thread
        self._sending = threading.Lock()
        self._received: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._decode = msgspec.msgpack.Decoder(commands).decode
        threading.Thread(target=self._read, name="reader", daemon=True).start()

    @classmethod
    def connect(cls, address: str, commands: Any) -> "Channel":
        """The channel to the owner at `fd:N` or `tcp:HOST:PORT`; `commands` is the type of what he says."""
        # Neither this nor the key is left to what this process starts.
        search_where_owner_does()
        kind, _, where = address.partition(":")
        if kind == "fd":
            os.set_inheritable(int(where), False)
            wake_when_owner_dies()
            return cls(socket.socket(fileno=int(where)), commands)
        assert kind == "tcp", f"an address begins with fd: or tcp:, not {address}"
        key, lifeline = os.environ.pop(KEY_VARIABLE), os.environ.pop(LIFELINE_VARIABLE, None)
        if lifeline is not None:
            _end_with_agent(int(lifeline))
            wake_when_owner_dies()
        channel = cls(dial(where), commands)
        channel.send(Hello(key=key))
        return channel

    def send(self, message: Record) -> None:
        """Send a message to the owner; waits until the socket has taken all of it."""
        with self._sending:
            self._pipe.sendall(framed(message))

    def receive(self, timeout_s: float | None = None) -> Any:
        """The next command of the owner; None if none came in time."""
        try:
            return (
                self._received.get(timeout=timeout_s)
                if timeout_s
                else self._received.get(block=timeout_s is None)
            )
        except queue.Empty:
            return None

    @contextmanager
    def kept_alive(self, limit_s: float) -> Iterator[None]:
        """Send signs of life while the block runs, for a limited time."""
        is_over = threading.Event()
        until = time.monotonic() + limit_s

        def speak() -> None:
            while not is_over.wait(_SIGN_OF_LIFE_S) and time.monotonic() < until:
                self.send(Alive())

        thread = threading.Thread(target=speak, name="signs of life", daemon=True)
        thread.start()
        try:
            yield
        finally:
            is_over.set()
            thread.join()

    @staticmethod
    def leave(code: int = 0) -> NoReturn:
        """End the process in order, without waiting for libraries to take themselves apart."""
        # Its log may be on a disk that is full.
        with suppress(OSError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)

    def _read(self) -> None:
        frames = Frames()
        try:
            while received := self._pipe.recv(_RECEIVE_BYTES):
                for payload in frames.feed(received):
                    self._received.put(self._decode(payload))
        except msgspec.MsgspecError:
            traceback.print_exc()  # Or nobody would know why it ended.
        finally:
            if self._is_thread:
                self._received.put(Stop())
            else:
                os.killpg(0, signal.SIGKILL)


def search_where_owner_does() -> None:
    """Look for modules also where the owner said, after this process's own places."""
    places = os.environ.pop(SEARCH_PATH_VARIABLE, "").split(os.pathsep)
    sys.path += [place for place in places if place and place not in sys.path]


def wake_when_owner_dies() -> None:
    """Have the system continue this process when its parent dies, so that a stopped one sees it and ends.

    Not SIGKILL: what this process started would be left behind. SIGCONT does nothing to a process that runs,
    so it does no harm that the system takes the end of the thread that started it for the parent's.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGCONT)


def _end_with_agent(lifeline: int) -> None:
    """End this process with its group when whoever holds the other end of a pipe is gone."""

    def wait() -> None:
        while os.read(lifeline, 1):
            pass
        os.killpg(0, signal.SIGKILL)

    os.set_inheritable(lifeline, False)
    threading.Thread(target=wait, name="lifeline", daemon=True).start()
