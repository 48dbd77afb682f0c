"""The owner's end of a socket to a worker: framed records out and in, never blocking.

Keeps itself registered with the selector it is given, for reading and, while something is left to send, for
writing; so whoever waits for that selector need not know which.
"""

import selectors
import socket
from typing import Any

import msgspec

from dora_rl.core.record import Record
from dora_rl.launch.framing import MAX_FRAME_BYTES, Frames, framed

_RECEIVE_BYTES = 1 << 20


class Connection:
    """A connected socket, what was not sent yet, and what came in part."""

    def __init__(
        self, pipe: socket.socket, replies: Any, selector: selectors.BaseSelector, received: bytes = b""
    ) -> None:
        """`received`: what was read from the socket already."""
        pipe.setblocking(False)
        self._pipe = pipe
        self._selector = selector
        self._decode = msgspec.msgpack.Decoder(replies).decode
        self._frames, self._unsent = Frames(MAX_FRAME_BYTES), bytearray()
        self._is_blocked = False
        self._received = received
        self.has_hung_up = False
        """Whether `receive` found the other end closed; everything that came before was given out."""
        self.fault: str | None = None
        """What the worker did if it sent something that is no message: nothing more is read from it."""
        selector.register(pipe, selectors.EVENT_READ)

    @property
    def is_mid_message(self) -> bool:
        return not self._frames.is_between

    def send(self, message: Record) -> None:
        """Send a message; what the socket does not take at once is kept for `flush`."""
        self._unsent += framed(message)
        self.flush()

    def flush(self) -> bool:
        """Send what was kept; False while something is left to send."""
        try:
            while self._unsent:
                del self._unsent[: self._pipe.send(self._unsent)]
        except BlockingIOError:
            self._watch_writing(True)
            return False
        except OSError:
            self._unsent.clear()  # The death is noticed by whoever reads.
        self._watch_writing(False)
        return True

    def receive(self) -> list[Any]:
        """Every complete message that arrived since the last call; nothing behind what is none."""
        words: list[Any] = []
        try:
            while not self.has_hung_up and (received := self._take_received()):
                words += map(self._decode, self._frames.feed(received))
                if self._frames.fault is not None:
                    self._lose(self._frames.fault)
            self.has_hung_up = True
        except msgspec.MsgspecError as error:
            self._lose(str(error))
        except BlockingIOError:
            pass
        except OSError:
            # Reset, or its machine did not answer any more.
            self.has_hung_up = True
        return words

    def _take_received(self) -> bytes:
        received, self._received = self._received, b""
        return received or self._pipe.recv(_RECEIVE_BYTES)

    def _lose(self, why: str) -> None:
        # Code of the user's may have written to the socket: its worker is lost, not its owner.
        self.fault = f"sent what is no message: {why}"
        self.has_hung_up = True

    def close(self) -> None:
        """Close the socket, and leave the selector."""
        self._selector.unregister(self._pipe)
        self._pipe.close()

    def _watch_writing(self, is_blocked: bool) -> None:
        if is_blocked != self._is_blocked:
            self._is_blocked = is_blocked
            events = selectors.EVENT_READ | (selectors.EVENT_WRITE if is_blocked else 0)
            self._selector.modify(self._pipe, events)
