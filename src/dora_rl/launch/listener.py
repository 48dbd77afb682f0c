"""Where those who were given a key dial in: one port for one worker, open on one interface.

Whoever connects says a key within a few seconds, in one small message, or is hung up on. Nothing else that a
stranger sends is looked at, and only so many may wait. Keys are compared in constant time.
"""

import secrets
import selectors
import socket
import time
from contextlib import suppress

import msgspec
from msgspec import Struct

from dora_rl.launch.dial import tune
from dora_rl.launch.messages import Hello

MAX_CALLERS = 8
"""Most connections that may wait for their key to be heard; beyond them the oldest is hung up on."""
HELLO_S = 10.0
"""Seconds within which a caller must have said a key."""
_HELLO_BYTES = 256
_LENGTH_BYTES = 4
_RECEIVE_BYTES = 1 << 16

_decode = msgspec.msgpack.Decoder(Hello).decode


class Admitted(Struct, frozen=True, kw_only=True):
    """A caller who said a key that was given out."""

    name: str
    """Whose key it was."""
    pipe: socket.socket
    received: bytes
    """What it said behind the key."""


class _Caller(Struct):
    pipe: socket.socket
    since: float
    said: bytes = b""


class Listener:
    """A listening socket, and the connections that have not said a key yet."""

    def __init__(self, host: str, keys: dict[str, str], selector: selectors.BaseSelector) -> None:
        """Listen on the interface of `host`; `keys` are those given out, by the names of whom to."""
        self._keys = keys
        self._selector = selector
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._socket = socket.create_server((host, 0), family=family, backlog=2 * MAX_CALLERS)
        self._socket.setblocking(False)
        selector.register(self._socket, selectors.EVENT_READ)
        self._is_open = True
        self._callers: list[_Caller] = []
        own, port, *_ = self._socket.getsockname()
        self.address = f"tcp:[{own}]:{port}" if ":" in own else f"tcp:{own}:{port}"
        """Where to dial, as workers are told it."""

    def admit(self) -> list[Admitted]:
        """Hear whoever connected: those who said a right key by now; who cannot any more is hung up on."""
        with suppress(BlockingIOError):
            while True:
                pipe, _ = self._socket.accept()
                pipe.setblocking(False)
                self._selector.register(pipe, selectors.EVENT_READ)
                self._callers.append(_Caller(pipe, time.monotonic()))
                if len(self._callers) > MAX_CALLERS:
                    self._hang_up(self._callers[0])
        return [found for caller in list(self._callers) if (found := self._heard(caller)) is not None]

    def close(self) -> None:
        """Hang up on whoever waits, and listen no more; may be called again."""
        if not self._is_open:
            return
        self._is_open = False
        for caller in list(self._callers):
            self._hang_up(caller)
        self._selector.unregister(self._socket)
        self._socket.close()

    def _heard(self, caller: _Caller) -> Admitted | None:
        has_hung_up = not _read(caller)
        size = _LENGTH_BYTES + int.from_bytes(caller.said[:_LENGTH_BYTES], "big")
        is_whole = len(caller.said) >= max(size, _LENGTH_BYTES + 1)
        if not is_whole and size <= _HELLO_BYTES and not has_hung_up and not _is_late(caller):
            return None
        name = self._name_of(caller.said[_LENGTH_BYTES:size]) if is_whole and size <= _HELLO_BYTES else None
        if name is None:
            self._hang_up(caller)
            return None
        self._forget(caller)
        tune(caller.pipe)
        return Admitted(name=name, pipe=caller.pipe, received=caller.said[size:])

    def _name_of(self, hello: bytes) -> str | None:
        try:
            said = _decode(hello).key.encode()
        except msgspec.MsgspecError:
            return None
        # All are compared, so that time tells nothing of which was nearly right.
        found = [name for name, key in self._keys.items() if secrets.compare_digest(said, key.encode())]
        return found[0] if found else None

    def _hang_up(self, caller: _Caller) -> None:
        self._forget(caller)
        caller.pipe.close()

    def _forget(self, caller: _Caller) -> None:
        self._callers.remove(caller)
        self._selector.unregister(caller.pipe)


def _read(caller: _Caller) -> bool:
    """Read what a caller said, no more than it could need; False where it hung up."""
    try:
        while len(caller.said) < _RECEIVE_BYTES:
            received = caller.pipe.recv(_RECEIVE_BYTES)
            if not received:
                return False
            caller.said += received
    except BlockingIOError:
        return True
    except OSError:
        return False
    return True


def _is_late(caller: _Caller) -> bool:
    return time.monotonic() - caller.since > HELLO_S
