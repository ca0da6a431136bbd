"""Hands out connections into the network of a run: the socket itself, over a Unix socket in the network of this machine.

What forward.py leads has been accepted before anybody knows whether the program inside listens, so who comes to one that has died
sees a connection that breaks, not one that is refused. A front has to know the difference (what was refused may be asked of
another replica, what was sent may not), and gets it here: the connection is the program's own, and no byte of it goes through
another process. Both ends look at who the other one is; tasks have no way to such a name, which belongs to a network as ports do.
"""

from __future__ import annotations

import asyncio
import os
import socket
import struct

# Seconds for a program that listens and does not accept.
PATIENCE = 5.0
_HERE, _REFUSED = b"+", b"-"
_USER = struct.Struct("=iII")


def listen(port: int) -> socket.socket:
    """For the port of this machine's loopback that stands for the program; in the network in which that is."""
    found = socket.socket(socket.AF_UNIX)
    found.bind(_name(port))
    found.listen(128)
    return found


async def hand_out(comer: socket.socket, port: int, owner: int) -> None:
    """To `owner` and root: a connection to `port` of 127.0.0.1 here, or that there is none."""
    with comer, socket.socket() as inside:
        if _user(comer) not in (owner, 0):
            return
        inside.setblocking(False)
        try:
            async with asyncio.timeout(PATIENCE):
                await asyncio.get_running_loop().sock_connect(inside, ("127.0.0.1", port))
            said, given = _HERE, [inside.fileno()]
        except OSError:
            said, given = _REFUSED, []
        try:
            socket.send_fds(comer, [said], given)
        except OSError:
            return  # gone meanwhile


async def connection(port: int) -> socket.socket | None:
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
