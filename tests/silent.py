"""A server that takes connections and says nothing, as behind a router that went away."""

from __future__ import annotations

import socket
import threading
from typing import Any


def kubeconfig(server: str) -> dict[str, Any]:
    """What the portal keeps of one."""
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "it", "cluster": {"server": server}}],
        "users": [{"name": "it", "user": {"token": "t"}}],
        "contexts": [{"name": "it", "context": {"cluster": "it", "user": "it"}}],
        "current-context": "it",
    }


class Silent:
    """Takes connections and says nothing; `asked` of them by now."""

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
        """Whoever waits for it is cut off. May be repeated."""
        if self._socket.fileno() < 0:
            return
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._thread.join()
        for each in self._kept:
            each.close()
