"""A bad network in front of an API server: failing calls, silent watches, and a hook before each call."""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import urllib3

from clusters.clouds.drivers.kubernetes import sampling
from clusters.clouds.drivers.kubernetes.api.client import Client
from tests.kube.following import portal_kubeconfig
from tests.kube.plane import Plane

PASSED_ON = ("Accept", "Content-Type")


class Proxy:
    """`failing` is the share of calls answered with 429 or 500. While `silent` is set, watches deliver nothing. `calls`
    lists method and path of every call; `before` is called with each before it is passed on. The proxy has the portal's
    rights."""

    def __init__(self, plane: Plane) -> None:
        self.plane = plane
        self.failing = 0.0
        self.silent = threading.Event()
        self.failed = 0
        self.calls: list[tuple[str, str]] = []
        self.before: Callable[[str, str], None] = lambda method, path: None
        self.random = random.Random(7)
        self.pool = Client.connect(str(portal_kubeconfig(plane)))._pool
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self.server.daemon_threads = True

    @property
    def lists(self) -> list[str]:
        """Returns what was listed, without look-ups of single objects by name and what pods use, which is measured."""
        apart = ("watch=1", "fieldSelector=metadata.name", "/proxy/stats/", sampling.METRICS)
        return [path for method, path in self.calls if method == "GET" and not any(each in path for each in apart)]

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: object) -> None:
                pass

            def _pass_on(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                proxy.calls.append((self.command, self.path))
                proxy.before(self.command, self.path)
                if proxy.random.random() < proxy.failing:
                    proxy.failed += 1
                    self._fail()
                    return
                # If the API server behind it is down or goes down, the proxy drops the connection too.
                try:
                    answer = proxy.pool.request(
                        self.command,
                        f"{proxy.plane.url}{self.path}",
                        body=body or None,
                        headers={name: self.headers[name] for name in PASSED_ON if name in self.headers},
                        preload_content=False,
                    )
                    self._answer(answer)
                except (urllib3.exceptions.HTTPError, OSError):
                    self.close_connection = True

            def _answer(self, answer: urllib3.BaseHTTPResponse) -> None:
                self.send_response(answer.status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Transfer-Encoding", "chunked")
                self.end_headers()
                for piece in answer.stream(65536):
                    if proxy.silent.is_set() and "watch=1" in self.path:
                        threading.Event().wait(60)
                    self.wfile.write(b"%x\r\n%b\r\n" % (len(piece), piece))
                    self.wfile.flush()
                if proxy.silent.is_set() and "watch=1" in self.path:
                    threading.Event().wait(60)
                self.wfile.write(b"0\r\n\r\n")

            def _fail(self) -> None:
                status = proxy.random.choice((429, 500))
                data = json.dumps({"kind": "Status", "code": status, "message": "The proxy says no."}).encode()
                self.send_response(status)
                if status == 429:
                    self.send_header("Retry-After", "1")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            do_GET = do_POST = do_PATCH = do_DELETE = do_PUT = _pass_on  # noqa: N815

        return Handler

    @property
    def config(self) -> dict[str, Any]:
        """Returns a kubeconfig for the proxy."""
        url = f"http://127.0.0.1:{self.server.server_address[1]}"
        return {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "proxy",
            "clusters": [{"name": "proxy", "cluster": {"server": url}}],
            "users": [{"name": "proxy", "user": {}}],
            "contexts": [{"name": "proxy", "context": {"cluster": "proxy", "user": "proxy"}}],
        }

    def kubeconfig(self, folder: Path) -> Path:
        path = folder / "proxy.kubeconfig"
        path.write_text(json.dumps(self.config))
        return path


def is_write(method: str, path: str) -> bool:
    return method != "GET" and "dryRun" not in urlsplit(path).query


@contextmanager
def proxied(plane: Plane) -> Iterator[Proxy]:
    proxy = Proxy(plane)
    threading.Thread(target=proxy.server.serve_forever, daemon=True).start()
    try:
        yield proxy
    finally:
        proxy.server.shutdown()
        proxy.server.server_close()
