"""Passes connections into the network of a run: the socket itself, over a Unix socket in this machine's network.

forward.py accepts a connection before it knows whether the program inside listens, so a dead program looks like a broken
connection instead of a refused one. A router needs the difference (a refused request may go to another replica, a sent one may
not) and gets it here: it receives the program's own connection, and no other process copies its bytes. The caller sends the
proof of the cluster (../../entrance.py), after checking who listens: another user of this machine may have taken the name. Tasks
cannot reach such a name, which belongs to a network namespace as ports do.
"""

from __future__ import annotations

import asyncio
import hmac
import os
import socket
import struct

# Seconds, for a program that listens and does not accept.
PATIENCE = 5.0
MAX_PROOF = 200
_HERE, _REFUSED = b"+", b"-"
_USER = struct.Struct("=iII")


def listen(port: int) -> socket.socket:
    """Listens under the name of a loopback port of this machine, in the machine's network."""
    found = socket.socket(socket.AF_UNIX)
    found.bind(_name(port))
    found.listen(128)
    return found


async def hand_out(comer: socket.socket, port: int, proof: str) -> None:
    """Sends a caller with the proof a connection to `port` of 127.0.0.1 inside, or that there is none."""
    loop = asyncio.get_running_loop()
    with comer, socket.socket() as inside:
        comer.setblocking(False)
        inside.setblocking(False)
        try:
            # So short a message arrives in one piece.
            async with asyncio.timeout(PATIENCE):
                said = await loop.sock_recv(comer, MAX_PROOF)
        except OSError:
            return
        if not proof or not hmac.compare_digest(said, proof.encode()):
            return
        try:
            async with asyncio.timeout(PATIENCE):
                await loop.sock_connect(inside, ("127.0.0.1", port))
            said, given = _HERE, [inside.fileno()]
        except OSError:
            said, given = _REFUSED, []
        try:
            socket.send_fds(comer, [said], given)
        except OSError:
            return  # the caller is gone


async def connection(port: int, proof: str) -> socket.socket | None:
    """Connects to the program behind a loopback port. None: nobody passes them on. Raises OSError if it does not listen."""
    loop = asyncio.get_running_loop()
    with socket.socket(socket.AF_UNIX) as line:
        try:
            line.connect(_name(port))  # never blocks
        except OSError:
            return None
        if _user(line) not in (os.geteuid(), 0):
            return None
        line.setblocking(False)
        line.send(proof.encode())
        told = asyncio.Event()
        loop.add_reader(line, told.set)
        try:
            await told.wait()
        finally:
            loop.remove_reader(line)
        said, given, _, _ = socket.recv_fds(line, 1, 1, socket.MSG_CMSG_CLOEXEC)
    if said == _REFUSED:
        raise ConnectionRefusedError
    return socket.socket(fileno=given[0]) if given else None


def _name(port: int) -> str:
    return f"\0gpu-cloud/port/{port}"


def _user(line: socket.socket) -> int:
    """Returns the uid of the other end when it connected, or began to listen."""
    return int(_USER.unpack(line.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _USER.size))[1])
