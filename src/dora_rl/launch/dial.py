"""TCP between a worker and its owner, over a network that is theirs alone: nothing on it is encrypted.

An end whose machine is gone, or whose cable was cut, is found out within `GONE_S` seconds: the system asks
when nothing is said, and gives up what is not acknowledged.
"""

import socket

_DIAL_S = 30.0
_ASK_AFTER_S, _ASK_EVERY_S, _NUM_ASKED = 5, 5, 3
GONE_S = _ASK_AFTER_S + _ASK_EVERY_S * _NUM_ASKED
"""Seconds after which the system takes a silent end for gone."""


def dial(where: str) -> socket.socket:
    """Connect to an owner at `HOST:PORT`."""
    host, _, port = where.rpartition(":")
    pipe = socket.create_connection((host.strip("[]"), int(port)), timeout=_DIAL_S)
    pipe.settimeout(None)
    tune(pipe)
    return pipe


def tune(pipe: socket.socket) -> None:
    """Set what both ends of a connection set."""
    # Messages are small and awaited: none waits for the next to share a packet with.
    pipe.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    pipe.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (
        ("TCP_KEEPIDLE", _ASK_AFTER_S),
        ("TCP_KEEPINTVL", _ASK_EVERY_S),
        ("TCP_KEEPCNT", _NUM_ASKED),
        ("TCP_USER_TIMEOUT", 1000 * GONE_S),
    ):
        # Not every system has all of them.
        if (option := getattr(socket, name, None)) is not None:
            pipe.setsockopt(socket.IPPROTO_TCP, option, value)
