"""How long a server may keep us waiting, and how much it may answer: over a whole answer, however slowly its bytes come.

A timeout of a socket is about silence only, and a byte a second is none. So what is waited for an answer is taken from an
allowance that its request began with; for files each byte that moves gives some of it back, so that a large one takes its time
and a server that trickles does not. `within` is about everything that one page or one test asks of servers.
"""

from __future__ import annotations

import socket
import ssl
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

# Seconds to wait in one answer; of a file, behind the slowest pace that it may come with, in bytes a second.
ANSWER_SECONDS, SLOWEST = 20.0, 32 * 1024
# Of an answer that is no file. The largest are lists of a thousand long names.
ANSWER_BYTES = 16 * 2**20
# How often the end of an answer may be read; botocore looks for the end of a line behind it for ever.
ENDS = 8

Result = TypeVar("Result")

_end: ContextVar[float] = ContextVar("end", default=float("inf"))
_file: ContextVar[bool] = ContextVar("file", default=False)


class TooLong(OSError):
    """An answer has more bytes than any of its kind."""


@contextmanager
def within(seconds: float) -> Iterator[None]:
    """All waiting of this thread for servers ends after `seconds`."""
    token = _end.set(min(_end.get(), time.monotonic() + seconds))
    try:
        yield
    finally:
        _end.reset(token)


@contextmanager
def for_files() -> Iterator[None]:
    """What is asked meanwhile moves the bytes of a file."""
    token = _file.set(True)
    try:
        yield
    finally:
        _file.reset(token)


class Allowance:
    """What is left of one request and its answer."""

    def __init__(self) -> None:
        self.is_file = _file.get()
        self.seconds, self.bytes, self.ends = ANSWER_SECONDS, ANSWER_BYTES, ENDS

    def spend(self, connection: socket.socket, move: Callable[[], Result], count: Callable[[Result], int]) -> Result:
        """Calls `move`, which waits and moves bytes. Raises TimeoutError and TooLong."""
        wait = min(self.seconds, _end.get() - time.monotonic())
        if wait <= 0:
            raise TimeoutError("the answer takes too long")
        connection.settimeout(wait)
        began = time.monotonic()
        result = move()
        moved = count(result)
        self.seconds -= time.monotonic() - began
        if self.is_file:
            self.seconds = min(ANSWER_SECONDS, self.seconds + moved / SLOWEST)
        else:
            self.bytes -= moved
        self.ends -= not moved
        if self.bytes < 0 or self.ends < 0:
            raise TooLong("the answer is too long")
        return result


class Socket(socket.socket):
    """A connection whose waiting is spent from an allowance, once it has one."""

    allowance: Allowance | None = None

    @classmethod
    def of(cls, connection: socket.socket) -> Socket:
        """Takes the connection over."""
        timeout = connection.gettimeout()
        taken = cls(fileno=connection.detach())
        taken.settimeout(timeout)
        return taken

    def recv_into(self, *args: Any) -> int:
        return _spent(self, lambda: super(Socket, self).recv_into(*args), int)

    def sendall(self, data: Any, *args: Any) -> None:
        _spent(self, lambda: super(Socket, self).sendall(data, *args), lambda _: memoryview(data).nbytes)


class SecureSocket(ssl.SSLSocket):
    """As Socket, for what an SSLContext makes."""

    allowance: Allowance | None = None

    def recv_into(self, *args: Any) -> int:
        return _spent(self, lambda: super(SecureSocket, self).recv_into(*args), int)

    def send(self, *args: Any) -> int:
        return _spent(self, lambda: super(SecureSocket, self).send(*args), int)


def _spent(connection: Socket | SecureSocket, move: Callable[[], Result], count: Callable[[Result], int]) -> Result:
    return connection.allowance.spend(connection, move, count) if connection.allowance else move()
