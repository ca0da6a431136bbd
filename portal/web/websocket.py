"""WebSockets (RFC 6455) on the web server's threads: the response to a request carries the whole conversation.

gunicorn writes a 101 like any other response and leaves the request's socket to it, so a WebSocket passes through
sign-in, access checks, limits and headers like every request. One thread sends, another receives. `websockets` only
builds and parses frames here: its own connections wait for ever for a client that does not read, and those of
simple-websocket buffer everything that a client sends. Here both directions wait for the slower side.
"""

from __future__ import annotations

import errno
import socket
import threading
from collections.abc import Callable, Iterator
from http import HTTPStatus

from django.http import HttpRequest, StreamingHttpResponse
from rest_framework.exceptions import APIException, PermissionDenied
from websockets.datastructures import Headers
from websockets.frames import CloseCode, Frame, Opcode
from websockets.http11 import Request
from websockets.protocol import OPEN, Protocol, Side
from websockets.server import ServerProtocol

PIECE = 1 << 16
# Typed or pasted text comes in smaller messages; a larger one ends the connection (1009).
MAX_MESSAGE = 1 << 20
# Seconds for a client to acknowledge a close.
CLOSE_SECONDS = 1.0


class UpgradeRequired(APIException):
    status_code = HTTPStatus.UPGRADE_REQUIRED
    default_code = "websocket-only"
    default_detail = "This address is a WebSocket: ask for it with a client for WebSockets."


def is_stopping() -> bool:
    """True if the web server's process is about to stop; gunicorn.conf.py replaces this function."""
    return False


class WebSocket:
    """One thread sends, another receives. OSError from any call means that the client is gone: that includes a client
    that neither sends nor accepts a byte within the socket's timeout."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._protocol = Protocol(Side.SERVER, max_size=MAX_MESSAGE)
        self._lock = threading.Lock()

    def send(self, data: bytes, *, text: bool = False) -> None:
        with self._lock:
            if self._protocol.state is not OPEN:
                raise ConnectionResetError(errno.ECONNRESET, "closed")
            (self._protocol.send_text if text else self._protocol.send_binary)(data)
            self._flush()

    def ping(self) -> None:
        """The pong shows that the client is still there."""
        with self._lock:
            if self._protocol.state is OPEN:
                self._protocol.send_ping(b"")
                self._flush()

    def close(self, code: int = CloseCode.NORMAL_CLOSURE) -> None:
        """Sends a close frame; `messages` ends once the client has answered it."""
        with self._lock:
            if self._protocol.state is OPEN:
                self._protocol.send_close(code)
                self._flush()

    def messages(self) -> Iterator[tuple[bool, bytes]]:
        """Yields (is_text, message) until either side has closed."""
        text, pieces = False, list[bytes]()
        while data := self._connection.recv(PIECE):
            with self._lock:
                self._protocol.receive_data(data)
                frames = self._protocol.events_received()
                # Pongs, and the answer to a close.
                self._flush()
            for frame in frames:
                assert isinstance(frame, Frame)
                if frame.opcode in (Opcode.TEXT, Opcode.BINARY, Opcode.CONT):
                    text = frame.opcode is Opcode.TEXT if not pieces else text
                    pieces.append(bytes(frame.data))
                    if frame.fin:
                        message = b"".join(pieces)
                        pieces.clear()
                        yield text, message
            if self._protocol.close_rcvd is not None or self._protocol.parser_exc is not None:
                return
        if self._protocol.state is OPEN:
            raise ConnectionResetError(errno.ECONNRESET, "cut off")

    def _flush(self) -> None:
        for data in self._protocol.data_to_send():
            if data:
                self._connection.sendall(data)
            else:
                self._connection.shutdown(socket.SHUT_WR)


class WebSocketResponse(StreamingHttpResponse):
    """Answers 101; then `talk` owns the connection until it returns. `close` is always called, even if `talk` never runs.
    Raises UpgradeRequired if the request is not for a WebSocket. A browser sends cookies from any site, so a request
    authenticated only by a cookie (`by_cookie`) must come from a page of the portal: otherwise PermissionDenied."""

    def __init__(
        self, request: HttpRequest, talk: Callable[[WebSocket], None], close: Callable[[], None], *, by_cookie: bool
    ) -> None:
        asked = Request(request.get_full_path(), Headers(request.headers.items()))
        answer = ServerProtocol().accept(asked)
        connection = request.META.get("gunicorn.socket")
        if answer.status_code != HTTPStatus.SWITCHING_PROTOCOLS or connection is None:
            raise UpgradeRequired
        if by_cookie and request.headers.get("Origin") != f"{request.scheme}://{request.get_host()}":
            raise PermissionDenied(
                "Only pages of the portal itself open this with your session; programs send a token."
            )
        super().__init__(
            _Conversation(connection, talk, close), status=HTTPStatus.SWITCHING_PROTOCOLS, headers=dict(answer.headers)
        )
        del self["Content-Type"]


class _Conversation:
    def __init__(self, connection: socket.socket, talk: Callable[[WebSocket], None], close: Callable[[], None]) -> None:
        self._connection, self._talk, self.close = connection, talk, close

    def __iter__(self) -> Iterator[bytes]:
        # gunicorn writes the headers before it asks for the next chunk.
        yield b""
        try:
            self._talk(WebSocket(self._connection))
        finally:
            # Wakes the thread that still reads.
            self._connection.shutdown(socket.SHUT_RDWR)
        # Otherwise gunicorn would read the next bytes as another request.
        raise BrokenPipeError(errno.EPIPE, "the WebSocket is closed")
