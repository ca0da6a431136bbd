"""Leads what the gateway sends to a port of this machine's loopback into the network of a run, byte by byte, both ways, each half
closed by itself.

In a thread of the holder (holder.py), which is in that network already; only runs with endpoints pay for asyncio. Whoever is not
the user that runs the portal finds the port closed.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket
    from collections.abc import Mapping

    from clusters.clouds.drivers.local.network.peers import Peers

# Bytes that may wait for a slow reader before the other side has to wait, too.
AT_ONCE = 256 * 1024


def begin(listening: Mapping[int, socket.socket], peers: Peers, owner: int) -> None:
    """Serves each socket for the port of 127.0.0.1 that it stands for, as long as this process lives; only `owner` and root
    are."""
    threading.Thread(target=asyncio.run, args=(_serve(listening, peers, owner),), name="forward", daemon=True).start()


async def _serve(listening: Mapping[int, socket.socket], peers: Peers, owner: int) -> None:
    servers = []
    for port, each in listening.items():

        async def led(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, port: int = port) -> None:
            if peers.owner(writer.get_extra_info("sockname"), writer.get_extra_info("peername")) in (owner, 0):
                await _lead(reader, writer, port)
            else:
                writer.transport.abort()

        servers.append(await asyncio.start_server(led, sock=each, limit=AT_ONCE))
    await asyncio.gather(*(server.serve_forever() for server in servers))


async def _lead(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, port: int) -> None:
    """A program that does not listen (yet) looks as it does everywhere: the connection is closed at once."""
    try:
        inside_reader, inside_writer = await asyncio.open_connection("127.0.0.1", port, limit=AT_ONCE)
    except OSError:
        writer.close()
        return
    try:
        await asyncio.gather(_pump(reader, inside_writer), _pump(inside_reader, writer))
    finally:
        writer.close()
        inside_writer.close()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):  # one side is gone, and with it whom to tell
        while data := await reader.read(AT_ONCE):
            writer.write(data)
            await writer.drain()
        writer.write_eof()
