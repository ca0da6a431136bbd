"""Connections to replicas: kept alive, with an exact record of which requests may be retried elsewhere.

A request may go to another replica only while no replica can have received all of it: the connection was refused, or it broke
before the kernel took the last byte. A request that was sent may have been executed, so it is not retried. The exception is a GET
or HEAD on a kept connection, which the replica may have closed a moment earlier.

aiohttp's client exposes none of this and retries by its own rules, so we do not use it.
"""

from __future__ import annotations

import asyncio
import select
import time
from collections import deque
from collections.abc import Sequence

from clusters.clouds.drivers import entrance
from clusters.clouds.drivers.local.network import sockets
from clusters.router.http1 import Answer, BadAnswer, proven
from clusters.router.table import Replica

# Seconds. A deleted pod does not refuse connections: its address is silent.
CONNECT = 2.0
# Seconds. Servers close idle connections, some after 5 s (uvicorn): stop using ours earlier, so that no request meets a close.
IDLE = 4.0
KEPT = 64
# The header by which an entrance reports that the program behind it saw nothing of the request.
NOT_TAKEN = entrance.NOT_TAKEN.lower().encode()
# Bytes read ahead of a slow caller.
AHEAD = 256 * 1024


class NotTaken(Exception):
    """No replica can have received the whole request: it may be sent to another."""


class Broken(Exception):
    """The connection broke after the request was sent, or the answer is malformed."""


class Connection(asyncio.Protocol):
    """One request at a time. `unsent` is exact: true while the kernel has not taken the whole request."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self.answer = Answer("GET")
        self.unsent = self.heard = False
        self.idle_since = 0.0
        self.uses = 0
        self._chunks: deque[bytes] = deque()
        self._ahead = 0
        self._paused = self._busy = False
        self._lost: BaseException | None = None
        self._waiter: asyncio.Future[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        # With a limit of 0, `pause_writing` is called for every byte that the kernel does not take at once.
        transport.set_write_buffer_limits(high=0)
        self._poll = select.poll()
        self._poll.register(transport.get_extra_info("socket").fileno(), select.POLLIN | select.POLLHUP)

    def pause_writing(self) -> None:
        self.unsent = True

    def resume_writing(self) -> None:
        self.unsent = False

    def data_received(self, data: bytes) -> None:
        if not self._busy:
            self.close()  # nobody asked it
            return
        self.heard = True
        try:
            piece = self.answer.feed(data)
        except BadAnswer as error:
            self._fail(error)
            return
        if piece:
            self._chunks.append(piece)
            self._ahead += len(piece)
            if self._ahead > AHEAD and not self.answer.done and not self._paused and self.transport:
                self._paused = True
                self.transport.pause_reading()
        self._wake()

    def eof_received(self) -> None:
        """The transport closes itself then and calls `connection_lost`."""

    def connection_lost(self, error: Exception | None) -> None:
        if self._busy and not self.answer.done:
            try:
                if error:
                    raise BadAnswer(f"the connection broke: {type(error).__name__}")
                self.answer.end()
            except BadAnswer as why:
                self._lost = self._lost or why
        self.transport = None
        self._wake()

    def send(self, method: str, parts: Sequence[bytes]) -> None:
        self.answer = Answer(method)
        self._busy, self.heard, self.unsent = True, False, False
        self.uses += 1
        if self.transport:
            self.transport.writelines(parts)

    async def head(self) -> None:
        """Waits for status and headers. Raises NotTaken and Broken."""
        while not self.answer.status:
            if self._lost is not None or self.transport is None:
                if self.unsent and not self.heard:
                    raise NotTaken("it broke while the request was being sent")
                raise Broken(str(self._lost or "it ended"))
            await self._wait()

    async def more(self) -> bytes:
        """Returns the body bytes received since the last call, or b"" at the end. Raises Broken."""
        while not self._chunks:
            if self.answer.done:
                return b""
            if self._lost is not None or self.transport is None:
                raise Broken(str(self._lost or "it ended"))
            await self._wait()
        found = b"".join(self._chunks) if len(self._chunks) > 1 else self._chunks[0]
        self._chunks.clear()
        self._ahead = 0
        if self._paused and self.transport:
            self._paused = False
            self.transport.resume_reading()
        return found

    @property
    def is_free(self) -> bool:
        """True if the connection can carry another request, as far as this side knows."""
        return (
            self.transport is not None and not self.transport.is_closing() and self.answer.done and self.answer.keeps
            and not self._chunks and not self.unsent and self._lost is None
        )  # fmt: skip

    @property
    def is_quiet(self) -> bool:
        """True if nothing arrived while idle. The kernel may hold a close that the event loop has not read yet."""
        return self.transport is not None and not self.transport.is_closing() and not self._poll.poll(0)

    def rest(self) -> None:
        self._busy = False
        self.idle_since = time.monotonic()

    def close(self) -> None:
        if self.transport:
            self.transport.abort()

    def _fail(self, error: BaseException) -> None:
        self._lost = error
        self.close()
        self._wake()

    def _wake(self) -> None:
        if self._waiter and not self._waiter.done():
            self._waiter.set_result(None)

    async def _wait(self) -> None:
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None


class Pool:
    """Idle connections by replica address."""

    def __init__(self) -> None:
        self._idle: dict[str, list[Connection]] = {}

    async def ask(self, replica: Replica, method: str, parts: Sequence[bytes]) -> Connection:
        """Sends a request (`parts`: its bytes, the head first) and returns the connection once the answer has begun. The caller
        returns it with `done`. Raises NotTaken and Broken."""
        parts = [proven(parts[0], replica.proof), *parts[1:]]
        while True:
            connection = self._kept(replica.address)
            is_kept = connection is not None
            if connection is None:
                connection = await self._connect(replica)
            try:
                connection.send(method, parts)
                await connection.head()
                if not is_kept and any(name.lower() == NOT_TAKEN for name, _ in connection.answer.headers):
                    raise NotTaken("its program does not listen")
            except (NotTaken, Broken) as error:
                connection.close()
                if is_kept and not connection.heard and (isinstance(error, NotTaken) or method in ("GET", "HEAD")):
                    continue
                raise
            except BaseException:
                connection.close()
                raise
            return connection

    def done(self, address: str, connection: Connection) -> None:
        """Keeps the connection for the next request if reusable; closes it otherwise, e.g. with an answer half read."""
        kept = self._idle.setdefault(address, [])
        if connection.is_free and len(kept) < KEPT:
            connection.rest()
            kept.append(connection)
        else:
            connection.close()

    def sweep(self, now: float) -> None:
        for address, kept in list(self._idle.items()):
            old = [each for each in kept if now - each.idle_since > IDLE or each.transport is None]
            for each in old:
                kept.remove(each)
                each.close()
            if not kept:
                del self._idle[address]

    def close(self) -> None:
        self.sweep(float("inf"))

    def _kept(self, address: str) -> Connection | None:
        kept, now = self._idle.get(address, []), time.monotonic()
        while kept:
            # Last in, first out: unused connections age and are closed.
            connection = kept.pop()
            if connection.is_free and now - connection.idle_since < IDLE and connection.is_quiet:
                return connection
            connection.close()
        return None

    async def _connect(self, replica: Replica) -> Connection:
        host, _, port = replica.address.rpartition(":")
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(CONNECT):
                # The loopback port accepts on behalf of the run's network even if no program listens in there.
                inside = await sockets.connection(int(port), replica.proof) if host == "127.0.0.1" else None
                if inside is not None:
                    _, connection = await loop.create_connection(Connection, sock=inside)
                else:
                    _, connection = await loop.create_connection(Connection, host.strip("[]"), int(port))
        except (OSError, ValueError, TimeoutError) as error:
            raise NotTaken(f"{type(error).__name__}: no connection") from error
        return connection
