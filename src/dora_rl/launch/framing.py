"""Records as bytes: four bytes of length, then MessagePack. A stream may cut them anywhere."""

import msgspec

from dora_rl.core.record import Record

_LENGTH_BYTES = 4


def framed(message: Record) -> bytes:
    """A message as the bytes that are sent: its length, then MessagePack."""
    payload = msgspec.msgpack.encode(message)
    return len(payload).to_bytes(_LENGTH_BYTES, "big") + payload


class Frames:
    """Cuts a stream of bytes into the payloads of its frames."""

    def __init__(self) -> None:
        self._part = bytearray()

    @property
    def is_between(self) -> bool:
        """Whether no message is half received."""
        return not self._part

    def feed(self, received: bytes) -> list[memoryview]:
        """Take in received bytes; returns the payloads that are now complete."""
        if self._part:
            self._part += received
            if len(self._part) < _first_frame_bytes(self._part):
                return []
            received = bytes(self._part)
            self._part.clear()
        view, start, payloads = memoryview(received), 0, []
        while len(view) - start >= (size := _first_frame_bytes(view[start : start + _LENGTH_BYTES])):
            payloads.append(view[start + _LENGTH_BYTES : start + size])
            start += size
        self._part += view[start:]
        return payloads


def _first_frame_bytes(stream: bytearray | memoryview) -> int:
    """The size in bytes of the frame that begins here; at least that of its length field."""
    if len(stream) < _LENGTH_BYTES:
        return _LENGTH_BYTES
    return _LENGTH_BYTES + int.from_bytes(stream[:_LENGTH_BYTES], "big")
