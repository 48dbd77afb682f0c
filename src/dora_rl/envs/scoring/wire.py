"""Records as bytes: four bytes of length, then MessagePack. A stream may cut them anywhere."""

import msgspec

from dora_rl.core.record import Record

_LENGTH_BYTES = 4


def framed(message: Record) -> bytes:
    """The message as it is sent."""
    payload = msgspec.msgpack.encode(message)
    return len(payload).to_bytes(_LENGTH_BYTES, "big") + payload


class Frames:
    """The payloads in a stream of bytes."""

    def __init__(self) -> None:
        self._received = bytearray()

    @property
    def is_between(self) -> bool:
        """No message is half received."""
        return not self._received

    def feed(self, received: bytes) -> list[bytes]:
        """The payloads that are now complete."""
        self._received += received
        payloads = []
        while (size := self._first_bytes()) is not None:
            payloads.append(bytes(self._received[_LENGTH_BYTES:size]))
            del self._received[:size]
        return payloads

    def _first_bytes(self) -> int | None:
        if len(self._received) < _LENGTH_BYTES:
            return None
        size = _LENGTH_BYTES + int.from_bytes(self._received[:_LENGTH_BYTES], "big")
        return size if len(self._received) >= size else None
