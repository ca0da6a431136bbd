"""Forwards the gateway's connections from a port of this machine's loopback into the network of a run.

Runs in a thread of the holder (holder.py), which is in that network already; only runs with endpoints pay for asyncio.
Connections must prove that the gateway opened them (../../entrance.py). For each port there is also a name under which sockets.py
passes connections on.
"""

from __future__ import annotations

import asyncio
import threading

from clusters.clouds.drivers import entrance
from clusters.clouds.drivers.local.network import sockets

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket
    from collections.abc import Mapping


def begin(listening: Mapping[int, socket.socket], handing: Mapping[int, socket.socket], proof: str) -> None:
    """Serves each socket for a port of 127.0.0.1 inside, as long as this process lives."""
    threading.Thread(target=asyncio.run, args=(_serve(listening, handing, proof),), name="forward", daemon=True).start()


async def _serve(listening: Mapping[int, socket.socket], handing: Mapping[int, socket.socket], proof: str) -> None:
    led = (entrance.accept(each, entrance.let_in, port, proof) for port, each in listening.items())
    given = (entrance.accept(each, sockets.hand_out, port, proof) for port, each in handing.items())
    await asyncio.gather(*led, *given)
