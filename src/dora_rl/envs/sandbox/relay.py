"""The one way out of a box: from a port of its loopback to one address outside.

The listening socket was made in the box and belongs to its network; whoever holds it, outside, accepts what
programs in the box say to it. So nothing in the box has a socket of the outside.
"""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

_CHUNK = 1 << 16


@asynccontextmanager
async def relayed(listener: socket.socket, host: str, port: int) -> AsyncIterator[None]:
    """Lead every connection to `listener` to `host:port` while the block runs."""
    connections: set[asyncio.Task[None]] = set()

    async def lead(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None, "a connection is served by a task"
        connections.add(task)
        try:
            await _lead(reader, writer, host, port)
        finally:
            connections.discard(task)

    server = await asyncio.start_server(lead, sock=listener.dup())
    try:
        yield
    finally:
        server.close()
        for task in connections:
            task.cancel()
        await asyncio.gather(*connections, return_exceptions=True)


async def _lead(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, host: str, port: int) -> None:
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
