"""Records as bytes: four bytes of length, then MessagePack. A stream may cut them anywhere."""

import msgspec

from dora_rl.core.record import Record

_LENGTH_BYTES = 4
MAX_FRAME_BYTES = 256 * 2**20
"""Bytes above which what a worker sends cannot be one of its messages. Text begins like 512 MiB."""


def framed(message: Record) -> bytes:
    """A message as the bytes that are sent: its length, then MessagePack."""
    payload = msgspec.msgpack.encode(message)
    return len(payload).to_bytes(_LENGTH_BYTES, "big") + payload


class Frames:
    """Cuts a stream of bytes into the payloads of its frames."""

    def __init__(self, max_bytes: int | None = None) -> None:
        """A frame of more than `max_bytes` is none."""
        self._part = bytearray()
        self._max_bytes = max_bytes
        self.fault: str | None = None
        """Why what came cannot be a message; nothing behind it can be understood either."""

    @property
    def is_between(self) -> bool:
        """Whether no message is half received."""
        return not self._part

    def feed(self, received: bytes) -> list[memoryview]:
        """Take in received bytes; returns the payloads that are now complete."""
        if self._part:
            self._part += received
            if len(self._part) < self._frame_bytes(self._part):
                return []
            received = bytes(self._part)
            self._part.clear()
        view, start, payloads = memoryview(received), 0, []
        while len(view) - start >= (size := self._frame_bytes(view[start : start + _LENGTH_BYTES])):
            payloads.append(view[start + _LENGTH_BYTES : start + size])
            start += size
        self._part += view[start:]
        return payloads

    def _frame_bytes(self, stream: bytearray | memoryview) -> int:
        """The size in bytes of the frame that begins here; at least that of its length field."""
        if len(stream) < _LENGTH_BYTES:
            return _LENGTH_BYTES
        size = int.from_bytes(stream[:_LENGTH_BYTES], "big")
        if self._max_bytes is not None and size > self._max_bytes:
            self.fault = f"it would have {size:,} bytes"
        return _LENGTH_BYTES + size
