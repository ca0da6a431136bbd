"""Simulated pod logs: one server acts as the kubelet of all nodes of a plane, for logs only.

The real API server queries it like a kubelet and verifies its certificate. It counts the bytes that it sends, which are
those that the API server reads and passes on."""

from __future__ import annotations

import datetime as dt
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

from tests.kube.plane import Plane

BEGAN = dt.datetime(2026, 3, 1, 12, tzinfo=dt.UTC)


@lru_cache(maxsize=2)
def stamped(lines: int, length: int) -> tuple[bytes, ...]:
    """Returns `lines` log lines of `length` bytes with one timestamp per millisecond from BEGAN on, as a node stores them."""
    second = [(BEGAN + dt.timedelta(seconds=n)).strftime("%Y-%m-%dT%H:%M:%S") for n in range(lines // 1000 + 1)]
    return tuple(
        f"{second[n // 1000]}.{n % 1000:03d}000000Z ".encode() + f"line {n} ".ljust(length - 1, "x").encode() + b"\n"
        for n in range(lines)
    )


class Kubelets(ThreadingHTTPServer):
    """Every container has written `lines`."""

    daemon_threads = True
    request_queue_size = 256

    def __init__(self, lines: tuple[bytes, ...]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.lines = lines
        self.sent = 0
        self.asked: list[dict[str, str]] = []
        self._counting = threading.Lock()

    def count(self, sent: int, asked: dict[str, str]) -> None:
        with self._counting:
            self.sent += sent
            self.asked.append(asked)


class _Handler(BaseHTTPRequestHandler):
    server: Kubelets

    def do_GET(self) -> None:
        address = urlsplit(self.path)
        asked = {name: values[-1] for name, values in parse_qs(address.query).items()}
        body = answer(self.server.lines, asked)
        self.send_response(200)
        self.send_header("Content-Type", "text/plain")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.server.count(len(body), asked)
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


def answer(lines: tuple[bytes, ...], asked: dict[str, str]) -> bytes:
    """Returns what a kubelet does: whole seconds for `sinceTime`, then the last `tailLines`, cut to `limitBytes`."""
    assert asked.get("timestamps") == "true"
    if since := asked.get("sinceTime"):
        first = since.encode()[:19]
        lines = tuple(line for line in lines if line[:19] >= first)
    if tail := asked.get("tailLines"):
        lines = lines[-int(tail) :]
    return b"".join(lines)[: int(asked["limitBytes"]) if "limitBytes" in asked else None]


@contextmanager
def played(plane: Plane, lines: tuple[bytes, ...]) -> Iterator[Kubelets]:
    """Makes the API server get the logs of all nodes of the plane from this server."""
    server = Kubelets(lines)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*plane.serving_certificate("kubelets", "127.0.0.1"))
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        address = {
            "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": server.server_port}},
        }
        for name in plane.nodes():
            plane.request("PATCH", f"/api/v1/nodes/{name}/status", {"status": address})
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
