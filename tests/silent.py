"""A server that accepts connections and never answers, like one behind a dead router."""

from __future__ import annotations

import socket
import threading
from typing import Any


def kubeconfig(server: str) -> dict[str, Any]:
    """A kubeconfig as the portal stores it."""
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "it", "cluster": {"server": server}}],
        "users": [{"name": "it", "user": {"token": "t"}}],
        "contexts": [{"name": "it", "context": {"cluster": "it", "user": "it"}}],
        "current-context": "it",
    }


class Silent:
    """Accepts connections and never answers; `asked` is the number of connections so far."""

    def __init__(self) -> None:
        self._socket = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        self._kept: list[socket.socket] = []
        self._thread = threading.Thread(target=self._take, daemon=True)
        self._thread.start()

    @property
    def asked(self) -> int:
        return len(self._kept)

    def _take(self) -> None:
        while True:
            try:
                self._kept.append(self._socket.accept()[0])
            except OSError:
                return

    def close(self) -> None:
        """Closes the server and all connections. May be repeated."""
        if self._socket.fileno() < 0:
            return
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._thread.join()
        for each in self._kept:
            each.close()
