"""Leads what the gateway sends to a port of this machine's loopback into the network of a run, byte by byte, both ways, each half
closed by itself.

In a thread of the holder (holder.py), which is in that network already; only runs with endpoints pay for asyncio. Whoever is not
the user that runs the portal finds the port closed. Beside each port stands the name by which handed.py gives connections away.
"""

from __future__ import annotations

import asyncio
import errno
import socket
import threading

from clusters.clouds.drivers.local.network import handed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping
    from typing import Any

    from clusters.clouds.drivers.local.network.peers import Peers

# Bytes that are read before they are written; a slow reader makes the other side wait. By sockets: asyncio's streams take 1.6
# times the processor time.
AT_ONCE = 256 * 1024
# Before it is tried again to accept, when there is no file left for a connection.
AGAIN = 1.0


def begin(
    listening: Mapping[int, socket.socket], handing: Mapping[int, socket.socket], peers: Peers, owner: int
) -> None:
    """Serves each socket for the port of 127.0.0.1 that it stands for, as long as this process lives; only `owner` and root
    are."""
    work = _serve(listening, handing, peers, owner)
    threading.Thread(target=asyncio.run, args=(work,), name="forward", daemon=True).start()


async def _serve(
    listening: Mapping[int, socket.socket], handing: Mapping[int, socket.socket], peers: Peers, owner: int
) -> None:
    led = (_accept(each, _let_in, port, peers, owner) for port, each in listening.items())
    await asyncio.gather(*led, *(_accept(each, handed.hand_out, port, owner) for port, each in handing.items()))


async def _accept(listening: socket.socket, serve: Callable[..., Coroutine[Any, Any, None]], *told: object) -> None:
    loop = asyncio.get_running_loop()
    served: set[asyncio.Task[None]] = set()
    listening.setblocking(False)
    while True:
        try:
            comer, _ = await loop.sock_accept(listening)
        except OSError as error:
            if error.errno != errno.ECONNABORTED:
                await asyncio.sleep(AGAIN)
            continue
        task = loop.create_task(serve(comer, *told))
        served.add(task)  # which keeps it alive
        task.add_done_callback(served.discard)


async def _let_in(comer: socket.socket, port: int, peers: Peers, owner: int) -> None:
    with comer:
        try:
            is_known = peers.owner(comer.getsockname(), comer.getpeername()) in (owner, 0)
        except OSError:
            return  # gone already
        if is_known:
            await _lead(comer, port)


async def _lead(comer: socket.socket, port: int) -> None:
    """Until both halves are closed, or one end is gone. A program that does not listen (yet) looks as it does everywhere: the
    connection is closed at once."""
    with socket.socket() as inside:
        inside.setblocking(False)
        try:
            await asyncio.get_running_loop().sock_connect(inside, ("127.0.0.1", port))
            async with asyncio.TaskGroup() as halves:
                halves.create_task(_pump(comer, inside))
                halves.create_task(_pump(inside, comer))
        except* OSError:
            pass  # one end is gone, and with it whom to tell


async def _pump(source: socket.socket, target: socket.socket) -> None:
    loop, buffer = asyncio.get_running_loop(), memoryview(bytearray(AT_ONCE))
    target.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    while size := await loop.sock_recv_into(source, buffer):
        await loop.sock_sendall(target, buffer[:size])
    target.shutdown(socket.SHUT_WR)
