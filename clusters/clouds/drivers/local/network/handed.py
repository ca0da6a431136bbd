"""Hands out connections into the network of a run: the socket itself, over a Unix socket in the network of this machine.

What forward.py leads has been accepted before anybody knows whether the program inside listens, so who comes to one that has died
sees a connection that breaks, not one that is refused. A front has to know the difference (what was refused may be asked of
another replica, what was sent may not), and gets it here: the connection is the program's own, and no byte of it goes through
another process. Who asks sends the proof of the cluster (../../entrance.py), after a look at who listens: another user of this
machine may have taken the name. Tasks have no way to such a name, which belongs to a network as ports do.
"""

from __future__ import annotations

import asyncio
import hmac
import os
import socket
import struct

# Seconds for a program that listens and does not accept.
PATIENCE = 5.0
MAX_PROOF = 200
_HERE, _REFUSED = b"+", b"-"
_USER = struct.Struct("=iII")


def listen(port: int) -> socket.socket:
    """For the port of this machine's loopback that stands for the program; in the network in which that is."""
    found = socket.socket(socket.AF_UNIX)
    found.bind(_name(port))
    found.listen(128)
    return found


async def hand_out(comer: socket.socket, port: int, proof: str) -> None:
    """To whoever sends the proof: a connection to `port` of 127.0.0.1 here, or that there is none."""
    loop = asyncio.get_running_loop()
    with comer, socket.socket() as inside:
        comer.setblocking(False)
        inside.setblocking(False)
        try:
            # A line as short as this comes in one piece.
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
            return  # gone meanwhile


async def connection(port: int, proof: str) -> socket.socket | None:
    """One to the program for which the port of this machine's loopback stands; None where nobody hands them out. Raises OSError
    where the program does not listen."""
    loop = asyncio.get_running_loop()
    with socket.socket(socket.AF_UNIX) as line:
        try:
            line.connect(_name(port))  # at once, or never
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
    """Of the other end: as whom it connected, or began to listen."""
    return int(_USER.unpack(line.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _USER.size))[1])
