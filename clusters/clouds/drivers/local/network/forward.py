"""Leads what the gateway sends to a port of this machine's loopback into the network of a run.

In a thread of the holder (holder.py), which is in that network already; only runs with endpoints pay for asyncio. Who comes has
to prove that the gateway sent them (../../entrance.py). Beside each port stands the name by which handed.py gives connections
away.
"""

from __future__ import annotations

import asyncio
import threading

from clusters.clouds.drivers import entrance
from clusters.clouds.drivers.local.network import handed

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket
    from collections.abc import Mapping


def begin(listening: Mapping[int, socket.socket], handing: Mapping[int, socket.socket], proof: str) -> None:
    """Serves each socket for the port of 127.0.0.1 that it stands for, as long as this process lives."""
    threading.Thread(target=asyncio.run, args=(_serve(listening, handing, proof),), name="forward", daemon=True).start()


async def _serve(listening: Mapping[int, socket.socket], handing: Mapping[int, socket.socket], proof: str) -> None:
    led = (entrance.accept(each, entrance.let_in, port, proof) for port, each in listening.items())
    given = (entrance.accept(each, handed.hand_out, port, proof) for port, each in handing.items())
    await asyncio.gather(*led, *given)
