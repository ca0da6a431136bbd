"""Limits how long a server may take and how much it may answer, over a whole response, however slowly its bytes arrive.

A socket timeout only limits silence, and a byte a second is not silence. So each request starts with an allowance of
time, and waiting is deducted from it. When a file is transferred, each byte refunds some time, so a large file may take
long but a trickling server may not. `within` limits all requests of one page or one test.
"""

from __future__ import annotations

import socket
import ssl
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

# Seconds of waiting per response; for files they are refunded at this minimum rate, in bytes a second.
ANSWER_SECONDS, SLOWEST = 20.0, 32 * 1024
# For responses other than files. The largest are lists of a thousand long names.
ANSWER_BYTES = 16 * 2**20
# How often the end of a response may be read; botocore would look for the end of a line behind it for ever.
ENDS = 8

Result = TypeVar("Result")

_end: ContextVar[float] = ContextVar("end", default=float("inf"))
_file: ContextVar[bool] = ContextVar("file", default=False)


class TooLong(OSError):
    """A response is larger than any valid one."""


@contextmanager
def within(seconds: float) -> Iterator[None]:
    """Ends all waiting of this thread for servers after `seconds`."""
    token = _end.set(min(_end.get(), time.monotonic() + seconds))
    try:
        yield
    finally:
        _end.reset(token)


@contextmanager
def for_files() -> Iterator[None]:
    """Marks the requests inside as file transfers."""
    token = _file.set(True)
    try:
        yield
    finally:
        _file.reset(token)


class Allowance:
    """The remaining time and bytes of one request and its response."""

    def __init__(self) -> None:
        self.is_file = _file.get()
        self.seconds, self.bytes, self.ends = ANSWER_SECONDS, ANSWER_BYTES, ENDS

    def spend(self, connection: socket.socket, move: Callable[[], Result], count: Callable[[Result], int]) -> Result:
        """Calls `move`, which waits and transfers bytes, and deducts both. Raises TimeoutError and TooLong."""
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
    """A connection whose waiting is deducted from its allowance, once it has one."""

    allowance: Allowance | None = None

    @classmethod
    def of(cls, connection: socket.socket) -> Socket:
        """Takes over the connection."""
        timeout = connection.gettimeout()
        taken = cls(fileno=connection.detach())
        taken.settimeout(timeout)
        return taken

    def recv_into(self, *args: Any) -> int:
        return _spent(self, lambda: super(Socket, self).recv_into(*args), int)

    def sendall(self, data: Any, *args: Any) -> None:
        _spent(self, lambda: super(Socket, self).sendall(data, *args), lambda _: memoryview(data).nbytes)


class SecureSocket(ssl.SSLSocket):
    """Like Socket, for SSLContext."""

    allowance: Allowance | None = None

    def recv_into(self, *args: Any) -> int:
        return _spent(self, lambda: super(SecureSocket, self).recv_into(*args), int)

    def send(self, *args: Any) -> int:
        return _spent(self, lambda: super(SecureSocket, self).send(*args), int)


def _spent(connection: Socket | SecureSocket, move: Callable[[], Result], count: Callable[[Result], int]) -> Result:
    return connection.allowance.spend(connection, move, count) if connection.allowance else move()
