"""The one way out of a box: from a port of its loopback to one address outside.

The listening socket was made in the box and belongs to its network; whoever holds it, outside, accepts what
programs in the box say to it. So nothing in the box has a socket of the outside.
"""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

_MAX_CONNECTIONS = 64
"""Connections of a box at a time: each takes two descriptors of this process, which others need too."""
_CHUNK = 1 << 16


@asynccontextmanager
async def relayed(listener: socket.socket, host: str, port: int) -> AsyncIterator[None]:
    """Lead every connection to `listener` to `host:port` while the block runs; more than a few wait."""
    accepting = asyncio.create_task(_accept(listener, host, port))
    try:
        yield
    finally:
        accepting.cancel()
        with suppress(asyncio.CancelledError):
            await accepting


async def _accept(listener: socket.socket, host: str, port: int) -> None:
    listener.setblocking(False)
    loop, slots = asyncio.get_running_loop(), asyncio.Semaphore(_MAX_CONNECTIONS)
    async with asyncio.TaskGroup() as connections:
        while True:
            await slots.acquire()
            accepted, _ = await loop.sock_accept(listener)
            leading = connections.create_task(_lead(accepted, host, port))
            leading.add_done_callback(lambda _: slots.release())


async def _lead(accepted: socket.socket, host: str, port: int) -> None:
    """Copy one connection to the address and back, until both directions are over."""
    reader, writer = await asyncio.open_connection(sock=accepted)
    try:
        there_reader, there_writer = await asyncio.open_connection(host, port)
    except OSError:
        writer.close()  # Nobody listens there: the program sees its connection end.
        return
    try:
        await asyncio.gather(_pump(reader, there_writer), _pump(there_reader, writer))
    finally:
        for each in (writer, there_writer):
            each.close()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Copy one direction to its end; a side that breaks off has ended."""
    with suppress(OSError):
        while data := await reader.read(_CHUNK):
            writer.write(data)
            await writer.drain()
        writer.write_eof()
