"""HTTP server of the router: accepts requests to <label>.<domain of services>, which proxy.py forwards, until it is told to end.

It needs nothing of the portal while it works: database_feed.py keeps the routing table.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import resource
import secrets
import signal
import socket
import time
from pathlib import Path
from typing import Any

from aiohttp import web
from aiohttp.http import HttpProcessingError

from clusters.router.access_log import AccessLog
from clusters.router.admission import Hall
from clusters.router.counters import Tally
from clusters.router.database_feed import Link
from clusters.router.proxy import Refusal, Router, Where

log = logging.getLogger(__name__)
MAX_CONNECTIONS = 2000
# Seconds. Longer than gateways keep connections (Traefik: 90), so none sends a request into a connection that we close.
KEEP_ALIVE = 120.0
GRACE = 30.0
LINGER = 1.0
NO_REQUEST = "This is no request of HTTP, or a line of it is longer than 8,000 bytes."
NO_ROOM = "This router has as many connections as it may. Try again."


class _Full(asyncio.Protocol):
    """Answers 503 to connections beyond the limit."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        body = json.dumps({"error": NO_ROOM}).encode()
        head = "HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nRetry-After: 1\r\nConnection: close\r\n"
        if isinstance(transport, asyncio.WriteTransport):
            transport.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
            transport.close()


class _Caller(web.RequestHandler):
    """One connection. Unlike aiohttp it neither logs nor echoes a malformed request, which may contain a token."""

    def handle_error(
        self, request: web.BaseRequest, status: int = 500, exc: BaseException | None = None, message: str | None = None
    ) -> web.StreamResponse:
        if not isinstance(exc, HttpProcessingError):
            return super().handle_error(request, status, exc, message)
        response = Refusal(400, NO_REQUEST).response()
        response.force_close()
        return response


class Server(web.Server):
    """Accepts at most MAX_CONNECTIONS connections."""

    def __call__(self) -> Any:
        if len(self._connections) >= MAX_CONNECTIONS:
            return _Full()
        return _Caller(self, loop=self._loop, **self._kwargs)


async def run(host: str, port: int, *, database: str, path: Path, name: str, where: Where, form: str = "line") -> int:
    """Runs until SIGTERM or SIGINT, then gives requests in flight GRACE seconds. `name`: this host and port. `path`: file of the
    routing table. `where`: domain and ports of services."""
    loop, told = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, told.set)
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(65_536, most) if most > 0 else 65_536, most))
    hall, tally, access_log = Hall(), Tally(), AccessLog(form)
    link = Link(database, f"{name}/{secrets.token_hex(3)}", f"{name}/", path, hall, tally)
    router = Router(where, hall, tally, link, access_log)
    link.recall()
    server = Server(
        router.answer, handler_cancellation=True, access_log=None, auto_decompress=False, keepalive_timeout=KEEP_ALIVE,
        logger=logging.getLogger("router.http"),
    )  # fmt: skip
    runner = web.ServerRunner(server, handle_signals=False, shutdown_timeout=1.0)
    await runner.setup()
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.create_server((host, port), family=family, backlog=1024)
    site = web.SockSite(runner, listener, backlog=1024)
    await site.start()
    link.start()
    log.info("takes requests to *.%s at %s:%s", where.domain, host, port)
    while not told.is_set():
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(1):
                await told.wait()
        access_log.flush()
        router.sweep()
    router.ending = True
    await _ended(listener, site, server, router)
    await router.end()
    await link.stop()
    access_log.flush()
    await runner.cleanup()
    return 0


async def _ended(listener: socket.socket, site: web.SockSite, server: Server, router: Router) -> None:
    """Drains the router. For LINGER seconds answers close their connections and HEALTH returns 503, so that load balancers stop
    sending. Then it closes the listener and waits for the requests in flight."""
    end = time.monotonic() + GRACE
    await asyncio.sleep(LINGER)
    # Closing a listener drops the connections in its backlog: accept them first.
    last = []
    with contextlib.suppress(OSError):
        while True:
            last.append(listener.accept()[0])
    await site.stop()
    for each in last:
        await asyncio.get_running_loop().connect_accepted_socket(server, each)
    # Requests on those connections may still be in transit.
    await asyncio.sleep(LINGER / 4)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(end - time.monotonic()):
            await router.empty.wait()
