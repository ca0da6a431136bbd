#!/usr/bin/python3
"""The entrance to what a task serves: whoever opens a connection proves, in the head of its first request, that the gateway or
the front of the portal sent it. After that every byte is passed on, both ways, each half closed by itself.

The gateway and the front put the proof of a cluster (`Cluster.proof`) into HEADER, whatever their client wrote there. They alone
open connections here, so one proof counts for all requests of a connection: WebSockets, streams and pipelined requests pass as
they are. Which user or which pod the other end belongs to does not count: the portal also sends what its users ask for.

On one machine a thread of the process that holds the network of a run serves it (local/network/forward.py). On Kubernetes
it is a sidecar of the pod: `entrance HEALTH PORT:TO…`, with the proof in ENTRANCE_PROOF. The kubelet has no proof: a GET of READY
there tells whether the program answers at HEALTH, and nothing of what it answers. It uses the standard library alone, for it is
copied into docker/rclone as it stands."""

from __future__ import annotations

import asyncio
import errno
import hmac
import os
import signal
import socket
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable
    from typing import Any

HEADER = "X-Portal-Gateway"
# In the answer to a request that the program cannot have seen: whoever sent it may ask elsewhere.
NOT_TAKEN = "X-Portal-Not-Taken"
READY = "/.portal/ready"
# Bytes that are read before they are written; a slow reader makes the other side wait. By sockets: asyncio's streams take 1.6
# times the processor time.
AT_ONCE = 256 * 1024
MAX_HEAD = 64 * 1024
# Seconds. A gateway may open a connection before it has a request for it, and closes it itself after 90 s (Traefik). A head that
# has begun comes at once.
IDLE, PATIENCE = 120.0, 10.0
# For a program that listens and does not accept.
CONNECT = 5.0
# Before it is tried again to accept, when there is no file left for a connection.
AGAIN = 1.0
NOT_PROVEN = "Only the gateway of the portal is let in here."
TOO_LONG = f"The head of a request has at most {MAX_HEAD} bytes."
NOBODY = "The program does not listen."


class Refused(Exception):
    """An answer of the entrance itself."""

    def __init__(self, status: str, sentence: str = "", *headers: str) -> None:
        super().__init__(sentence)
        body = f"{sentence}\n" if sentence else ""
        lines = [f"HTTP/1.1 {status}", "Content-Type: text/plain", f"Content-Length: {len(body)}", "Connection: close"]
        self.answer = ("\r\n".join([*lines, *headers]) + "\r\n\r\n" + body).encode()


async def accept(listening: socket.socket, serve: Callable[..., Coroutine[Any, Any, None]], *told: object) -> None:
    """Serves each connection, for ever."""
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


async def let_in(comer: socket.socket, port: int, proof: str, health: str = "") -> None:
    """Leads one connection to `port` of 127.0.0.1 until both halves are closed or one end is gone. `health` is the path that is
    asked for READY, "" where nobody asks."""
    with comer, socket.socket() as inside:
        try:
            for each in (comer, inside):
                each.setblocking(False)
                each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            first = await _first(comer)
            if not first:
                return
            if health and first.startswith(f"GET {READY} ".encode()):
                raise Refused("200 OK" if await _is_ready(first, port, health) else "503 Service Unavailable")
            if not proves(first, proof):
                raise Refused("403 Forbidden", NOT_PROVEN)
            try:
                async with asyncio.timeout(CONNECT):
                    await asyncio.get_running_loop().sock_connect(inside, ("127.0.0.1", port))
            except OSError as error:
                raise Refused("502 Bad Gateway", NOBODY, f"{NOT_TAKEN}: yes") from error
            await asyncio.get_running_loop().sock_sendall(inside, first)
            async with asyncio.TaskGroup() as halves:
                halves.create_task(_pump(comer, inside))
                halves.create_task(_pump(inside, comer))
        except* Refused as refused:
            await _say(comer, refused.exceptions[0])
        except* OSError:
            pass  # one end is gone, and with it whom to tell; TimeoutError is one, too


def proves(first: bytes, proof: str) -> bool:
    """Whether the head at the beginning of `first` has the proof, and no other one. An empty proof proves nothing."""
    name, said = HEADER.lower().encode(), list[bytes]()
    for line in first.partition(b"\r\n\r\n")[0].split(b"\r\n")[1:]:
        key, colon, value = line.partition(b":")
        if colon and key.lower() == name:
            said.append(value.strip())
    return bool(proof) and bool(said) and all(hmac.compare_digest(each, proof.encode()) for each in said)


async def _first(comer: socket.socket) -> bytes:
    """What came up to the end of the first head at least; b"" where nothing did. Raises Refused, and TimeoutError for a slow
    one."""
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(IDLE):
        found = bytearray(await loop.sock_recv(comer, AT_ONCE))
    async with asyncio.timeout(PATIENCE):
        while found and (end := found.find(b"\r\n\r\n")) < 0 and len(found) <= MAX_HEAD:
            piece = await loop.sock_recv(comer, AT_ONCE)
            if not piece:
                return b""
            found += piece
    if found and (end < 0 or end > MAX_HEAD):
        raise Refused("431 Request Header Fields Too Large", TOO_LONG)
    return bytes(found)


async def _is_ready(first: bytes, port: int, health: str) -> bool:
    """As the kubelet judges an answer. Many programs answer only to names that they know, so the name is passed on."""
    lines = first.partition(b"\r\n\r\n")[0].split(b"\r\n")[1:]
    host = next((line for line in lines if line[:5].lower() == b"host:"), b"Host: localhost")
    line = b""
    try:
        async with asyncio.timeout(PATIENCE):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            try:
                writer.write(b"GET %s HTTP/1.1\r\n%s\r\nConnection: close\r\n\r\n" % (health.encode(), host))
                line = await reader.readline()
            finally:
                writer.close()
    except (OSError, ValueError):  # ValueError: a line without end
        pass
    return line.startswith(b"HTTP/1.") and line[9:10] in (b"2", b"3")


async def _say(comer: socket.socket, refused: BaseException) -> None:
    """Answers, and reads what is still on its way: with bytes unread, the kernel would reset the connection, and the answer
    might be lost."""
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(PATIENCE):
            if isinstance(refused, Refused):
                await loop.sock_sendall(comer, refused.answer)
            comer.shutdown(socket.SHUT_WR)
            while await loop.sock_recv(comer, AT_ONCE):
                pass
    except OSError:
        pass  # it is gone


async def _pump(source: socket.socket, target: socket.socket) -> None:
    loop, buffer = asyncio.get_running_loop(), memoryview(bytearray(AT_ONCE))
    while size := await loop.sock_recv_into(source, buffer):
        await loop.sock_sendall(target, buffer[:size])
    target.shutdown(socket.SHUT_WR)


async def main(health: str, ports: Iterable[str], proof: str) -> None:
    """Until it is told to end, which the kubelet does when the program has ended."""
    ended = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    led = []
    for each in ports:
        port, _, to = each.partition(":")
        family = socket.AF_INET6 if (both := socket.has_dualstack_ipv6()) else socket.AF_INET
        server = socket.create_server(("", int(port)), family=family, dualstack_ipv6=both, backlog=1024)
        led.append(asyncio.create_task(accept(server, let_in, int(to), proof, health)))
    await ended.wait()
    for task in led:
        task.cancel()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2:], os.environ["ENTRANCE_PROOF"]))
