"""HTTP/1.1 between a router and replicas: builds requests as bytes and parses answers as they arrive. Pure.

A replica runs users' code and is not trusted: an answer that two parsers could read differently is rejected, and the head sent
to the caller is written anew.
"""

from __future__ import annotations

from collections.abc import Iterable

from clusters.clouds.drivers import entrance

MAX_HEAD = 64 * 1024
# Headers that apply to a single connection and are never forwarded. Lower case.
HOP_BY_HOP = frozenset(
    {
        b"connection", b"keep-alive", b"proxy-authenticate", b"proxy-authorization", b"proxy-connection", b"te", b"trailer",
        b"transfer-encoding", b"upgrade",
    }
)  # fmt: skip
# Headers that the router writes itself or keeps to itself.
OURS_OF_REQUESTS = HOP_BY_HOP | {b"authorization", b"content-length", b"expect"}
OURS_OF_ANSWERS = HOP_BY_HOP | {b"content-length", b"date", b"server"}
PORTAL = b"x-portal-"

Headers = list[tuple[bytes, bytes]]


class BadAnswer(Exception):
    """A replica's answer is not valid HTTP/1.1."""


def onward(headers: Iterable[tuple[bytes, bytes]], dropped: frozenset[bytes]) -> Headers:
    """Returns the headers to forward: without `dropped`, those that “Connection” names, and those reserved for the portal.
    Python frameworks read X_Portal_Caller as X-Portal-Caller, so underscores count as hyphens."""
    found, named = [], set[bytes]()
    for name, value in headers:
        low = name.lower()
        if low == b"connection":
            named.update(each.strip().lower() for each in value.split(b","))
        if low not in dropped and not (low[:1] == b"x" and low.replace(b"_", b"-").startswith(PORTAL)):
            found.append((name, value))
    return [each for each in found if each[0].lower() not in named] if named else found


def request(method: str, target: str, headers: Iterable[tuple[bytes, bytes]], length: int) -> bytes:
    """Returns the head of a request whose body has `length` bytes."""
    lines = [f"{method} {target} HTTP/1.1".encode("utf-8", "surrogateescape")]
    lines += [name + b": " + value for name, value in headers]
    if length or method not in ("GET", "HEAD", "DELETE", "OPTIONS"):
        lines.append(b"Content-Length: %d" % length)
    return b"\r\n".join(lines) + b"\r\n\r\n"


def proven(head: bytes, proof: str) -> bytes:
    """Adds the proof that the replica's entrance requires to the head of a request."""
    return head[:-2] + f"{entrance.HEADER}: {proof}\r\n\r\n".encode()


class Answer:
    """Parser of one answer. `status`: 0 until the head is complete. `done`: the answer is complete. `keeps`: the connection can
    then carry another request. `length`: None if the answer does not declare it."""

    def __init__(self, method: str) -> None:
        self.status, self.reason = 0, ""
        self.headers: Headers = []
        self.length: int | None = None
        self.done = self.keeps = False
        self._bodiless = method == "HEAD"
        self._buffer = b""
        self._left = 0  # bytes left of the body, or of this chunk
        self._chunked = self._trailer = False

    def feed(self, data: bytes) -> bytes:
        """Parses `data` and returns the body bytes in it. Raises BadAnswer."""
        if not self.status:
            self._buffer += data
            data = self._head()
            if not self.status:
                return b""
        return self._body(data)

    def end(self) -> None:
        """Handles the end of the connection. Raises BadAnswer if the answer is incomplete."""
        self.keeps = False
        if not self.done and (not self.status or self._chunked or self.length is not None):
            raise BadAnswer("it ended in the middle")
        self.done = True

    def _head(self) -> bytes:
        """Parses the head and returns the bytes after it."""
        while True:
            at = self._buffer.find(b"\r\n\r\n")
            if at < 0 or at > MAX_HEAD:
                if len(self._buffer) > MAX_HEAD:
                    raise BadAnswer("its head is too long")
                return b""
            head, rest = self._buffer[:at], self._buffer[at + 4 :]
            lines, self._buffer = head.split(b"\r\n"), b""
            if not head.count(b"\r") == head.count(b"\n") == len(lines) - 1 or b"\0" in head:
                raise BadAnswer("its head has characters that none has")
            status, reason = _status(lines[0])
            if status >= 200:
                break
            if status == 101:
                raise BadAnswer("it changes the protocol, which nobody asked for")
            self._buffer = rest  # an interim answer (1xx)
        self.headers = [_header(line) for line in lines[1:]]
        self.reason = reason
        self._framing(status, lines[0].startswith(b"HTTP/1.1"))
        self.status = status
        return rest

    def _framing(self, status: int, is_new: bool) -> None:
        """Determines the length of the body, and whether the connection can be reused."""
        lengths, codings, connection = set[bytes](), list[bytes](), b""
        for name, value in self.headers:
            low = name.lower()
            if low == b"content-length":
                lengths.update(each.strip() for each in value.split(b","))
            elif low == b"transfer-encoding":
                codings += [each.strip().lower() for each in value.split(b",")]
            elif low == b"connection":
                connection += value.lower() + b","
        words = {each.strip() for each in connection.split(b",")}
        self.keeps = (is_new or b"keep-alive" in words) and b"close" not in words
        if len(lengths) > 1 or (lengths and codings) or any(not each.isdigit() or len(each) > 15 for each in lengths):
            raise BadAnswer("it says its length in more than one way")
        if codings not in ([], [b"chunked"]):
            raise BadAnswer("it is encoded in a way that nobody asked for")
        self.length = int(lengths.pop()) if lengths else None
        self._chunked = bool(codings)
        if self._bodiless or status in (204, 304):
            self._left, self._chunked, self.done = 0, False, True
        elif self._chunked:
            self.length = None
        elif self.length is None:
            self.keeps = False
        else:
            self._left, self.done = self.length, self.length == 0

    def _body(self, data: bytes) -> bytes:
        if self._chunked and not self.done:
            return self._chunks(data)
        if self.done or self.length is None:
            if self.done and data:
                self.keeps = False  # more bytes than declared
            return b"" if self.done else data
        if len(data) > self._left:
            data, self.keeps = data[: self._left], False
        self._left -= len(data)
        self.done = self._left == 0
        return data

    def _chunks(self, data: bytes) -> bytes:
        buffer, found = self._buffer + data, []
        while buffer and not self.done:
            if self._left > 2:  # bytes left of the chunk and the CRLF after it
                piece = buffer[: self._left - 2]
                found.append(piece)
                buffer = buffer[len(piece) :]
                self._left -= len(piece)
                continue
            if self._left:
                if len(buffer) < self._left:
                    break
                if buffer[: self._left] != b"\r\n"[-self._left :]:
                    raise BadAnswer("a chunk is longer than it said")
                buffer, self._left = buffer[self._left :], 0
                continue
            line, end, rest = buffer.partition(b"\r\n")
            if not end:
                if len(line) > MAX_HEAD:
                    raise BadAnswer("the line of a chunk is too long")
                break
            buffer = rest
            if self._trailer:
                self.done = not line
                continue
            size = line.partition(b";")[0].strip()
            if not size or len(size) > 12 or size.strip(b"0123456789abcdefABCDEF"):
                raise BadAnswer("a chunk has no size")
            self._left = int(size, 16) + 2
            if self._left == 2:
                self._left, self._trailer = 0, True
        if self.done and buffer:
            self.keeps, buffer = False, b""
        self._buffer = buffer
        return b"".join(found)


def _status(line: bytes) -> tuple[int, str]:
    version, _, rest = line.partition(b" ")
    code, _, reason = rest.partition(b" ")
    if version not in (b"HTTP/1.1", b"HTTP/1.0") or len(code) != 3 or not code.isdigit() or code < b"100":
        raise BadAnswer("it does not begin as HTTP/1.1 does")
    said = reason.decode("latin-1")
    return int(code), said if said.isprintable() else ""


def _header(line: bytes) -> tuple[bytes, bytes]:
    name, colon, value = line.partition(b":")
    if not colon or not name or name.strip() != name or b" " in name:
        raise BadAnswer("one of its headers is none")
    return name, value.strip()
