#!/usr/bin/python3
"""The entrance to a task's server: every connection must prove, in the head of its first request, that the portal's gateway or
router opened it. After that all bytes are forwarded both ways, and each direction is closed separately.

The gateway and the router set HEADER to the proof of a cluster (`Cluster.proof`), overwriting whatever the client sent. Only they
can open connections here, so one proof covers all requests of a connection: WebSockets, streams and pipelined requests pass
unchanged. The user or pod at the other end proves nothing, because the portal also forwards requests of its users.

On one machine a thread of the process that holds a run's network serves it (local/network/forward.py). On Kubernetes it is a
sidecar: `entrance HEALTH PORT:TO…`, with the proof in ENTRANCE_PROOF. The kubelet has no proof: a GET of READY there reports
only whether the program answers at HEALTH, and nothing of its answer. Only the standard library is imported, because this file
is copied into docker/rclone."""

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
# Set in the answer to a request that the program cannot have seen: the sender may retry elsewhere.
NOT_TAKEN = "X-Portal-Not-Taken"
READY = "/.portal/ready"
# Bytes read before they are written: a slow reader slows the other side down. Sockets, because asyncio's streams take 1.6 times
# the CPU time.
AT_ONCE = 256 * 1024
MAX_HEAD = 64 * 1024
# Seconds. Gateways open connections ahead of requests and close them after 90 s (Traefik). A head that has begun arrives soon.
IDLE, PATIENCE = 120.0, 10.0
# Seconds, for a program that listens and does not accept.
CONNECT = 5.0
# Seconds before accepting again when there are no free file descriptors.
AGAIN = 1.0
NOT_PROVEN = "Only the gateway of the portal is let in here."
TOO_LONG = f"The head of a request has at most {MAX_HEAD} bytes."
NOBODY = "The program does not listen."


class Refused(Exception):
    """An error answer of the entrance itself."""

    def __init__(self, status: str, sentence: str = "", *headers: str) -> None:
        super().__init__(sentence)
        body = f"{sentence}\n" if sentence else ""
        lines = [f"HTTP/1.1 {status}", "Content-Type: text/plain", f"Content-Length: {len(body)}", "Connection: close"]
        self.answer = ("\r\n".join([*lines, *headers]) + "\r\n\r\n" + body).encode()


async def accept(listening: socket.socket, serve: Callable[..., Coroutine[Any, Any, None]], *told: object) -> None:
    """Serves every connection, for ever."""
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
        served.add(task)  # keeps the task alive
        task.add_done_callback(served.discard)


async def let_in(comer: socket.socket, port: int, proof: str, health: str = "") -> None:
    """Forwards one connection to `port` of 127.0.0.1 until both directions are closed or one end is gone. `health`: the path
    checked for READY, "" to disable READY."""
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
            pass  # one end is gone and cannot be answered; TimeoutError is an OSError, too


def proves(first: bytes, proof: str) -> bool:
    """True if the first head in `first` has the proof and no other value of HEADER. An empty proof proves nothing."""
    name, said = HEADER.lower().encode(), list[bytes]()
    for line in first.partition(b"\r\n\r\n")[0].split(b"\r\n")[1:]:
        key, colon, value = line.partition(b":")
        if colon and key.lower() == name:
            said.append(value.strip())
    return bool(proof) and bool(said) and all(hmac.compare_digest(each, proof.encode()) for each in said)


async def _first(comer: socket.socket) -> bytes:
    """Reads at least to the end of the first head, or b"". Raises Refused, and TimeoutError for a slow client."""
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
    """Checks the program as the kubelet would. Passes the Host header on, because many programs answer only to known names."""
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
    """Sends the refusal, then reads on: with unread bytes the kernel would reset the connection and may drop the answer."""
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(PATIENCE):
            if isinstance(refused, Refused):
                await loop.sock_sendall(comer, refused.answer)
            comer.shutdown(socket.SHUT_WR)
            while await loop.sock_recv(comer, AT_ONCE):
                pass
    except OSError:
        pass  # the client is gone


async def _pump(source: socket.socket, target: socket.socket) -> None:
    loop, buffer = asyncio.get_running_loop(), memoryview(bytearray(AT_ONCE))
    while size := await loop.sock_recv_into(source, buffer):
        await loop.sock_sendall(target, buffer[:size])
    target.shutdown(socket.SHUT_WR)


async def main(health: str, ports: Iterable[str], proof: str) -> None:
    """Serves until SIGTERM, which the kubelet sends when the program has ended."""
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
