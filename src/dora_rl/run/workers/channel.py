"""The worker's end of the socket: a thread reads, any thread may send.

When the owner is gone the process ends at once, whatever it is doing: all it has made durable is durable, and
the rest would be in nobody's books.
"""

import os
import queue
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, NoReturn

import msgspec

from dora_rl.envs.scoring.wire import Frames, framed
from dora_rl.run.messages import Alive, Message

_RECEIVE_BYTES = 1 << 20
_SIGN_OF_LIFE_S = 1.0


class Channel:
    """Messages from and to the orchestrator."""

    def __init__(self, fd: int, command: Any) -> None:
        os.set_inheritable(fd, False)
        self._pipe = socket.socket(fileno=fd)
        self._sending = threading.Lock()
        self._received: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._decode = msgspec.msgpack.Decoder(command).decode
        threading.Thread(target=self._read, name="reader", daemon=True).start()

    def send(self, message: Message) -> None:
        with self._sending:
            self._pipe.sendall(framed(message))

    def receive(self, timeout_s: float | None = None) -> Any:
        """The next command; None if none came in time."""
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
        """Give signs of life while the block runs, but not for ever."""
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
        """End in order, without waiting for libraries to take themselves apart."""
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
        finally:
            os.killpg(0, signal.SIGKILL)
