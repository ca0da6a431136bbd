#!/usr/bin/env python3
"""Lets programs read one folder of a bucket over S3, with keys that open nothing else and expire with their run.

A small proxy in front of the bucket. It accepts GET and HEAD of objects in the folder, and lists of it, signs them with the
datastore's keys (AWS Signature Version 4), which no task ever sees, and streams the answer. So paging, ranges and ETags are the
store's own, and nothing is buffered whatever its size. Lists omit files in the trash. All else is refused without calling the
store: writes, other folders, other operations of S3.

It listens where only the tasks of one run can connect. The access key serves as a password, so signatures are not verified. Also
a program of docker/rclone, with the keys in rclone's variables, so it uses only the standard library:

    stream PORT data0:BUCKET/FOLDER/
"""

from __future__ import annotations

import datetime as dt
import hashlib
import hmac
import http.client
import os
import re
import socket
import socketserver
import sys
import threading
from dataclasses import dataclass, field
from html import escape
from http.server import BaseHTTPRequestHandler
from urllib.parse import parse_qsl, quote, unquote, urlsplit

TYPE_CHECKING = False
if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Mapping, Sequence

    # Connects to a host and port. Raises OSError.
    Dial = Callable[[str, int], socket.socket]
    Query = Sequence[tuple[str, str]]

PIECE = 256 * 1024
# Maximum bytes of a list, which is read whole; it has at most a thousand names.
MOST_LISTED = 4 << 20
# Holds removed files (TRASH of datastores/listing.py), which runs must not read.
TRASH = ".portal-trash"
# Maximum concurrent connections, and seconds of silence on one.
AT_ONCE, IDLE = 256, 120.0
EMPTY = hashlib.sha256(b"").hexdigest()
LISTS = frozenset(
    {
        "list-type", "prefix", "delimiter", "max-keys", "continuation-token", "start-after", "marker", "encoding-type",
        "fetch-owner",
    }
)  # fmt: skip
GETS = frozenset({"partNumber"} | {f"response-{name}" for name in ("content-type", "cache-control")})
PASSED = ("range", "if-match", "if-none-match", "if-modified-since", "if-unmodified-since", "x-amz-checksum-mode")
_LISTED = re.compile(rb"<(Contents|CommonPrefixes)>")
# Headers of a single connection, never forwarded.
_HOPS = frozenset({"connection", "keep-alive", "transfer-encoding", "te", "trailer", "upgrade", "proxy-authenticate"})


class Refused(Exception):
    """`code`: S3's error code. The text is for people."""

    def __init__(self, status: int, code: str, text: str) -> None:
        super().__init__(text)
        self.status, self.code = status, code


@dataclass(frozen=True)
class Folder:
    """A folder of a bucket, and keys to read it. `prefix`: without outer slashes, "" for the bucket. `endpoint`: "" for AWS."""

    endpoint: str
    region: str
    bucket: str
    prefix: str
    access_key: str
    secret_key: str = field(repr=False)

    @property
    def url(self) -> str:
        return self.endpoint or f"https://s3.{self.region}.amazonaws.com"

    def holds(self, name: str) -> bool:
        return not self.prefix or name.startswith(f"{self.prefix}/")


def asked(folder: Folder, method: str, target: str) -> tuple[str, Query]:
    """Validates a request; returns the unquoted path and query to send to the store. Raises Refused."""
    parts = urlsplit(target)
    path = unquote(parts.path, errors="surrogateescape")
    said = parse_qsl(parts.query, keep_blank_values=True, errors="surrogateescape")
    # Drop parameters that only name the operation or sign it.
    query = [(name, value) for name, value in said if name != "x-id" and not name.startswith("X-Amz-")]
    bucket, slash, name = path.removeprefix("/").partition("/")
    if bucket != folder.bucket:
        raise Refused(403, "AccessDenied", f"Only the bucket {folder.bucket} is open to this run.")
    if name:
        # `..` would escape the folder on a server that stores objects as files.
        if not folder.holds(name) or {".", ".."} & set(name.split("/")):
            raise Refused(403, "AccessDenied", f"Only what lies in {folder.prefix}/ is open to this run.")
        if TRASH in name.split("/"):
            raise Refused(404, "NoSuchKey", "The specified key does not exist.")
        _only(query, GETS)
        return f"/{bucket}/{name}", query
    if [name for name, _ in query] == ["location"] or (method == "HEAD" and not query):
        return f"/{bucket}{slash}", query
    _only(query, LISTS)
    told = [value for name, value in query if name == "prefix"]
    prefix = told[0] if len(told) == 1 else ""
    has_delimiter = any(value for name, value in query if name == "delimiter")
    if folder.prefix and prefix == folder.prefix and not has_delimiter:
        prefix += "/"
    if len(told) > 1 or not folder.holds(prefix) or {".", "..", TRASH} & set(prefix.split("/")):
        raise Refused(
            403, "AccessDenied", f"Only lists with a prefix that begins with {folder.prefix}/ are open to this run."
        )
    return f"/{bucket}{slash}", [(name, value) for name, value in query if name != "prefix"] + [("prefix", prefix)]


def _only(query: Query, known: frozenset[str]) -> None:
    if other := next((name for name, _ in query if name not in known), None):
        raise Refused(403, "AccessDenied", f"{other} is nothing that a run may ask for.")


def without_trash(listed: bytes) -> bytes:
    """Removes entries in a trash from a list in XML. Names may be URL-encoded."""
    kept, at = list[bytes](), 0
    for found in _LISTED.finditer(listed):
        end = listed.find(b"</" + found[1] + b">", found.end())
        if end < 0:
            break
        end += len(found[1]) + 3
        what = b"<Key>" if found[1] == b"Contents" else b"<Prefix>"
        name = listed[found.start() : end].partition(what)[2].partition(b"<")[0]
        if TRASH.encode() in name.replace(b"%2F", b"/").split(b"/"):
            kept.append(listed[at : found.start()])
            at = end
    return b"".join([*kept, listed[at:]])


def quoted(path: str, query: Query) -> tuple[str, str]:
    """Returns path and query quoted for signing and sending."""
    words = ((_quote(name), _quote(value)) for name, value in query)
    return _quote(path, "/"), "&".join(f"{name}={value}" for name, value in sorted(words))


def _quote(text: str, safe: str = "") -> str:
    return quote(text.encode("utf-8", "surrogateescape"), safe=safe + "-_.~")


def signed(
    folder: Folder, method: str, path: str, query: str, headers: Mapping[str, str], at: dt.datetime
) -> dict[str, str]:
    """Returns `headers` signed with the folder's keys (AWS Signature Version 4, empty body) for a quoted `path` and `query`."""
    stamp = at.strftime("%Y%m%dT%H%M%SZ")
    host = urlsplit(folder.url).netloc.rpartition("@")[2]
    all_headers = {**headers, "host": host, "x-amz-content-sha256": EMPTY, "x-amz-date": stamp}
    names = sorted(name for name in all_headers if name == "host" or name.startswith("x-amz-"))
    lines = [
        method,
        path,
        query,
        *(f"{name}:{all_headers[name].strip()}" for name in names),
        "",
        ";".join(names),
        EMPTY,
    ]
    scope = f"{stamp[:8]}/{folder.region}/s3/aws4_request"
    text = "\n".join(["AWS4-HMAC-SHA256", stamp, scope, hashlib.sha256("\n".join(lines).encode()).hexdigest()])
    key = b"AWS4" + folder.secret_key.encode()
    for part in (*scope.split("/"), text):
        key = hmac.digest(key, part.encode(), "sha256")
    credential = f"Credential={folder.access_key}/{scope}"
    word = f"AWS4-HMAC-SHA256 {credential}, SignedHeaders={';'.join(names)}, Signature={key.hex()}"
    return {**all_headers, "authorization": word}


def key_of(authorization: str, target: str) -> str:
    """Returns the access key in a request, or ""."""
    credential = authorization.partition("Credential=")[2] or dict(parse_qsl(urlsplit(target).query)).get(
        "X-Amz-Credential", ""
    )
    return credential.partition("/")[0]


class Server(socketserver.ThreadingMixIn, socketserver.TCPServer):
    """Serves `folder` on `listening` to callers with the access key `key`. A connection's requests are served in order."""

    daemon_threads = True

    def __init__(self, listening: socket.socket, folder: Folder, key: str, dial: Dial) -> None:
        super().__init__(("", 0), Handler, bind_and_activate=False)
        self.socket.close()
        self.socket, self.folder, self.key, self.dial = listening, folder, key, dial
        self.places = threading.Semaphore(AT_ONCE)
        self.tls: ssl.SSLContext | None = None
        if folder.url.startswith("https:"):
            import ssl

            self.tls = ssl.create_default_context()

    def upstream(self) -> http.client.HTTPConnection:
        """Returns a connection to the store. Raises OSError."""
        parts = urlsplit(self.folder.url)
        port = parts.port or (443 if self.tls else 80)
        found = http.client.HTTPConnection(parts.hostname or "", port, timeout=IDLE)
        found.sock = self.dial(parts.hostname or "", port)
        found.sock.settimeout(IDLE)
        if self.tls:
            found.sock = self.tls.wrap_socket(found.sock, server_hostname=parts.hostname)
        return found

    def process_request(self, request: socket.socket | tuple[bytes, socket.socket], client_address: object) -> None:
        self.places.acquire()
        super().process_request(request, client_address)

    def shutdown_request(self, request: socket.socket | tuple[bytes, socket.socket]) -> None:
        super().shutdown_request(request)
        self.places.release()

    def handle_error(self, request: socket.socket | tuple[bytes, socket.socket], client_address: object) -> None:
        """Ignores callers that disconnect."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = IDLE
    server: Server
    store: http.client.HTTPConnection | None = None

    def do_GET(self) -> None:
        try:
            if not hmac.compare_digest(self._key().encode(), self.server.key.encode()):
                raise Refused(403, "InvalidAccessKeyId", "The access key is not that of this run.")
            path, query = asked(self.server.folder, self.command, self.path)
            response = self._ask(*quoted(path, query))
            is_list = self.command == "GET" and response.status == 200 and any(name == "prefix" for name, _ in query)
            listed = without_trash(self._listed(response)) if is_list else None
        except Refused as error:
            self._refuse(error)
        else:
            self._answer(response) if listed is None else self._send(200, listed)

    do_HEAD = do_GET  # noqa: N815

    def do_PUT(self) -> None:
        """Refuses writes without reading the body."""
        self.close_connection = True
        self._refuse(Refused(405, "MethodNotAllowed", "Input is only read."))

    do_POST = do_DELETE = do_PATCH = do_OPTIONS = do_PUT  # noqa: N815

    def handle_expect_100(self) -> bool:
        """Does not send 100 Continue: the final answer follows without the body."""
        return True

    def finish(self) -> None:
        super().finish()
        if self.store is not None:
            self.store.close()

    def log_message(self, *_: object) -> None:
        """Writes no access log."""

    def _key(self) -> str:
        return key_of(self.headers.get("authorization", ""), self.path)

    def _ask(self, path: str, query: str) -> http.client.HTTPResponse:
        folder = self.server.folder
        base = urlsplit(folder.url).path.rstrip("/")
        headers = {name: value for name in PASSED if (value := self.headers.get(name)) is not None}
        while True:
            is_new = self.store is None
            try:
                self.store = self.store or self.server.upstream()
                ready = signed(folder, self.command, base + path, query, headers, dt.datetime.now(dt.UTC))
                self.store.putrequest(self.command, base + path + (f"?{query}" if query else ""), True, True)
                for name, value in ready.items():
                    self.store.putheader(name, value)
                self.store.endheaders()
                return self.store.getresponse()
            except (OSError, http.client.HTTPException) as error:
                if self.store is not None:
                    self.store.close()
                self.store = None
                # The store may have closed a kept connection: retry once with a new one.
                if is_new:
                    raise Refused(503, "ServiceUnavailable", f"{folder.url} does not answer: {error}") from error

    def _listed(self, response: http.client.HTTPResponse) -> bytes:
        """Reads a whole list. Raises Refused."""
        try:
            body = response.read(MOST_LISTED + 1)
            is_whole = not response.length and len(body) <= MOST_LISTED
        except (OSError, http.client.HTTPException):
            body, is_whole = b"", False
        if self.store is not None and (not is_whole or response.will_close):
            self.store.close()
            self.store = None
        response.close()
        if not is_whole:
            raise Refused(503, "ServiceUnavailable", f"{self.server.folder.url} broke off, or lists too much at once.")
        return body

    def _answer(self, response: http.client.HTTPResponse) -> None:
        has_body = self.command != "HEAD" and response.status not in (204, 304)
        is_chunked = has_body and response.length is None
        self.send_response_only(response.status, response.reason)
        for name, value in response.getheaders():
            if name.lower() not in _HOPS:
                self.send_header(name, value)
        if is_chunked:
            self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        try:
            while has_body and (piece := response.read1(PIECE)):
                self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece) if is_chunked else piece)
            is_whole = not response.length
        except (OSError, http.client.HTTPException):
            is_whole = False
        if is_whole and is_chunked:
            self.wfile.write(b"0\r\n\r\n")
        if not is_whole or response.will_close:
            if self.store is not None:
                self.store.close()
            self.store = None
        # Closing the connection early tells the reader that the body is incomplete.
        self.close_connection = self.close_connection or not is_whole
        response.close()

    def _refuse(self, error: Refused) -> None:
        body = f"<?xml version='1.0'?>\n<Error><Code>{error.code}</Code><Message>{escape(str(error))}</Message></Error>"
        self._send(error.status, body.encode())

    def _send(self, status: int, body: bytes) -> None:
        self.send_response_only(status)
        self.send_header("Content-Type", "application/xml")
        self.send_header("Content-Length", str(len(body)))
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


def main(port: str, remote: str) -> None:
    name, _, path = remote.partition(":")
    said = {key: os.environ[f"RCLONE_CONFIG_{name.upper()}_{key}"] for key in ("ENDPOINT", "REGION")}
    keys = [os.environ[f"RCLONE_CONFIG_{name.upper()}_{key}"] for key in ("ACCESS_KEY_ID", "SECRET_ACCESS_KEY")]
    bucket, _, prefix = path.rstrip("/").partition("/")
    listening = socket.create_server(("127.0.0.1", int(port)), backlog=128)
    open(os.path.join(os.environ["HOME"], "serving"), "w").close()  # the container's probe looks for it
    folder = Folder(said["ENDPOINT"], said["REGION"], bucket, prefix, *keys)
    Server(listening, folder, os.environ["STREAM_KEY"], _dial).serve_forever()


def _dial(host: str, port: int) -> socket.socket:
    return socket.create_connection((host, port), timeout=10)


if __name__ == "__main__":
    main(*sys.argv[1:])
