"""How a connection that is led into a run's network ends: each half by itself, and both as soon as one end is gone."""

from __future__ import annotations

import asyncio
import os
import socket
import struct

from clusters.clouds.drivers.local.network.forward import _let_in
from clusters.clouds.drivers.local.network.peers import Peers

PATIENCE = 10


def test_a_half_that_is_closed_leaves_the_other_open_and_an_end_that_is_gone_closes_both() -> None:
    async def story() -> None:
        loop = asyncio.get_running_loop()
        with socket.create_server(("127.0.0.1", 0)) as outside, socket.create_server(("127.0.0.1", 0)) as program:
            for server in (outside, program):
                server.setblocking(False)

            port = program.getsockname()[1]

            async def come() -> tuple[socket.socket, socket.socket, asyncio.Task[None]]:
                """One who comes, whom the program sees, and what leads the one to the other."""
                comer = socket.create_connection(outside.getsockname(), PATIENCE)
                comer.setblocking(False)
                leading = loop.create_task(_let_in((await loop.sock_accept(outside))[0], port, Peers(), os.geteuid()))
                seen, _ = await loop.sock_accept(program)
                return comer, seen, leading

            comer, seen, leading = await come()
            with comer, seen:
                await loop.sock_sendall(comer, b"question")
                comer.shutdown(socket.SHUT_WR)
                assert await loop.sock_recv(seen, 100) == b"question"
                assert await loop.sock_recv(seen, 100) == b""
                await loop.sock_sendall(seen, b"answer")
                assert await loop.sock_recv(comer, 100) == b"answer"
                seen.shutdown(socket.SHUT_WR)
                await leading
            comer, seen, leading = await come()
            with seen:
                # Reset: as a browser's machine that goes away.
                comer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                comer.close()
                assert await loop.sock_recv(seen, 100) == b""
                await leading

    asyncio.run(asyncio.wait_for(story(), PATIENCE))
