"""The client's side of a command inside a task: `base.Session` over the socket that the agent passed on."""

from __future__ import annotations

import socket
import threading
import time
from collections import deque

from clusters.clouds.drivers.base import CloudError, Output
from clusters.clouds.drivers.local.task import frames

CUT_OFF = "The command was cut off."
# Seconds without reading its input after which a command counts as dead.
SEND_SECONDS = 120.0


class LocalSession:
    """Takes over the connection."""

    exit_code: int | None = None

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        # A duplicate, because the timeout belongs to the socket object, and sending and receiving have different ones.
        self._outward = connection.dup()
        self._outward.settimeout(SEND_SECONDS)
        self._received = frames.Frames()
        self._waiting: deque[tuple[bytes, bytes]] = deque()
        self._sending = threading.Lock()

    def send(self, data: bytes) -> None:
        for start in range(0, len(data), frames.LARGEST):
            self._send(frames.INPUT, data[start : start + frames.LARGEST])

    def end_input(self) -> None:
        self._send(frames.END)

    def resize(self, columns: int, rows: int) -> None:
        self._send(frames.SIZE, b"%d %d" % (columns, rows))

    def receive(self, seconds: float) -> Output | None:
        end = time.monotonic() + seconds
        while self.exit_code is None:
            if self._waiting:
                kind, data = self._waiting.popleft()
                if kind in (frames.STDOUT, frames.STDERR):
                    return Output("stdout" if kind == frames.STDOUT else "stderr", data)
                if kind == frames.REFUSED:
                    raise CloudError(data.decode(errors="replace"))
                self.exit_code = int(data)
            elif not self._read(end - time.monotonic()):
                return None
        return None

    def close(self) -> None:
        self._connection.close()
        self._outward.close()

    def _read(self, seconds: float) -> bool:
        """Reads what has arrived; returns False on a timeout."""
        try:
            self._connection.settimeout(max(seconds, 0.0) or 0.001)
            data = self._connection.recv(4 * frames.LARGEST)
        except TimeoutError:
            return False
        except OSError as error:
            raise CloudError(CUT_OFF) from error
        if not data:
            raise CloudError(CUT_OFF)
        self._waiting += self._received.feed(data)
        return True

    def _send(self, kind: bytes, data: bytes = b"") -> None:
        try:
            with self._sending:
                self._outward.sendall(frames.pack(kind, data))
        except OSError as error:
            raise CloudError(CUT_OFF) from error
