"""A TCP proxy that counts the bytes a server sends."""

from __future__ import annotations

import socket
import socketserver
import threading
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

from tests import ports


class Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
    # Ports of tests are used again, and connections of the test before may still wait for their end.
    allow_reuse_address = True


class Counted:
    """`url` leads to the server at `target`; `sent` counts the bytes of its answers. Tests may reset it to 0."""

    def __init__(self, target: str, address: str = "127.0.0.1", port: int = 0) -> None:
        parts = urlsplit(target)
        self.target = (str(parts.hostname), int(parts.port or 80))
        self.sent = 0
        counted, lock = self, threading.Lock()

        class Handler(socketserver.BaseRequestHandler):
            def handle(self) -> None:
                # A client or server that disconnects ends only its own connection.
                with suppress(OSError), socket.create_connection(counted.target) as server:
                    back = threading.Thread(target=self.answer, args=(server,))
                    back.start()
                    with suppress(OSError):
                        while data := self.request.recv(1 << 18):
                            server.sendall(data)
                    with suppress(OSError):
                        server.shutdown(socket.SHUT_WR)
                    back.join()

            def answer(self, server: socket.socket) -> None:
                with suppress(OSError):
                    while data := server.recv(1 << 18):
                        with lock:
                            counted.sent += len(data)
                        self.request.sendall(data)
                with suppress(OSError):
                    self.request.shutdown(socket.SHUT_WR)

        self.server = Server((address, port or ports.free()), Handler)
        self.url = f"http://{address}:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def __enter__(self) -> Counted:
        return self

    def __exit__(self, *_: Any) -> None:
        self.server.shutdown()
        self.server.server_close()
