"""A bad network in front of an API server: calls that fail, watches that fall silent."""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import urllib3

from tests.kube.plane import Plane


class Proxy:
    """`failing` is the share of calls answered with 429 or 500; while `silent` is set, watches bring nothing more."""

    def __init__(self, plane: Plane) -> None:
        self.plane = plane
        self.failing = 0.0
        self.silent = threading.Event()
        self.failed = 0
        self.random = random.Random(7)
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self.server.daemon_threads = True

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: object) -> None:
                pass

            def _pass_on(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                if proxy.random.random() < proxy.failing:
                    proxy.failed += 1
                    self._fail()
                    return
                # Beneath the API server may be away: then so is this.
                try:
                    answer = proxy.plane._pool.request(
                        self.command,
                        f"{proxy.plane.url}{self.path}",
                        body=body or None,
                        headers={"Content-Type": self.headers.get("Content-Type", "application/json")},
                        preload_content=False,
                    )
                except urllib3.exceptions.HTTPError:
                    self.close_connection = True
                    return
                self.send_response(answer.status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Transfer-Encoding", "chunked")
                self.end_headers()
                for piece in answer.stream(65536):
                    if proxy.silent.is_set() and "watch=1" in self.path:
                        threading.Event().wait(60)
                    self.wfile.write(b"%x\r\n%b\r\n" % (len(piece), piece))
                    self.wfile.flush()
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

    def kubeconfig(self, folder: Path) -> Path:
        url = f"http://127.0.0.1:{self.server.server_address[1]}"
        document = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "proxy",
            "clusters": [{"name": "proxy", "cluster": {"server": url}}],
            "users": [{"name": "proxy", "user": {}}],
            "contexts": [{"name": "proxy", "context": {"cluster": "proxy", "user": "proxy"}}],
        }
        path = folder / "proxy.kubeconfig"
        path.write_text(json.dumps(document))
        return path


@contextmanager
def proxied(plane: Plane) -> Iterator[Proxy]:
    proxy = Proxy(plane)
    threading.Thread(target=proxy.server.serve_forever, daemon=True).start()
    try:
        yield proxy
    finally:
        proxy.server.shutdown()
        proxy.server.server_close()
