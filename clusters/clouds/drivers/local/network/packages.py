"""What tasks reach besides their run: `python -m clusters.clouds.drivers.local.network.packages SOCKET`, a proxy without a cache
to the package index and to the portal's tracking.

It answers on a Unix socket, to which the holder of each run's network forwards (`outward.py`), or in a pod of a Kubernetes
cluster (docker/kubernetes/packages) on a port given instead of SOCKET, and queries the index in PORTAL_PACKAGE_INDEX. So tasks
install packages without internet access, and from a private index without its password: this process sends that to the index's
own host, and it appears in no answer. It only understands an index's pages (PEP 503). Files are requested by the address in the
page, signed here, so that nobody can make it fetch other addresses.

Existing caching mirrors are unsuitable: when a client waits too long they redirect it to the index itself, password included.
uv's cache, beside the environments, serves as the cache.

What programs record by MLflow's client goes to the portal in PORTAL_TRACKING, to the addresses of `clusters/tracking/routes.py`
alone. A body is taken whole before the portal sees any of it, so a slow task holds no thread there.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import hmac
import html
import os
import re
import secrets
import signal
import socket
import socketserver
import sys
import threading
from collections.abc import Iterator, Sequence
from html.parser import HTMLParser
from http.server import BaseHTTPRequestHandler
from urllib.parse import quote, unquote, urljoin, urlsplit, urlunsplit

import urllib3
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool
from urllib3.exceptions import NewConnectionError

from clusters.clouds.drivers.local.agent import uids
from clusters.clouds.drivers.local.network.preload import outgoing
from clusters.clouds.drivers.local.task import sandbox

PIECE = 256 * 1024
CONNECT_SECONDS = 10.0
TIMEOUT = urllib3.Timeout(connect=CONNECT_SECONDS, read=120)
MAX_PAGE = 64 * 2**20
AT_ONCE = 64
# Reading a page, of which the longest have megabytes, takes ten times its size in memory.
PAGES_AT_ONCE = 8
_PROJECT = re.compile(r"/simple/([A-Za-z0-9][A-Za-z0-9._-]{0,199})/?")
_FILE = re.compile(r"/files/([A-Za-z0-9_-]+)\.([0-9a-f]{32})/([^/?#]+)")
_ASKED = ("Range", "If-None-Match", "If-Modified-Since", "If-Range")
_ANSWERED = ("Content-Type", "Content-Length", "Content-Range", "Accept-Ranges", "ETag", "Last-Modified")
_METADATA = ".metadata"
_TRACKING = re.compile(r"/api/2\.0/mlflow(?:-artifacts/artifacts)?(?:[/?][\x21-\x7e]*)?")
_TOLD = ("Authorization", "Content-Type")
MAX_BODY = 2**20


class Links(HTMLParser):
    """The links of an index page with all their attributes."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[dict[str, str]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        said = {name: value or "" for name, value in attrs}
        if tag == "a" and said.get("href"):
            self.found.append(said)


class _Pool(urllib3.PoolManager):
    """Connects by the rules of portal/network/outgoing.py, also after redirects. Raises Closed."""

    def __init__(self, rules: outgoing.Rules) -> None:
        super().__init__(maxsize=16, retries=urllib3.Retry(3, redirect=5), timeout=TIMEOUT)

        def connected(self: HTTPConnection) -> socket.socket:
            try:
                return outgoing.connect(self.host, self.port or self.default_port, rules, CONNECT_SECONDS)
            except OSError as error:
                raise NewConnectionError(self, str(error)) from error

        plain = type("Plain", (HTTPConnection,), {"_new_conn": connected})
        secure = type("Secure", (HTTPSConnection,), {"_new_conn": connected})
        self.pool_classes_by_scheme = {
            "http": type("PlainPool", (HTTPConnectionPool,), {"ConnectionCls": plain}),
            "https": type("SecurePool", (HTTPSConnectionPool,), {"ConnectionCls": secure}),
        }


class Index:
    """The index at `url`, which may contain a name and a password. `opened`: PORTAL_OPEN_NETWORKS."""

    def __init__(self, url: str, opened: Sequence[str] = ()) -> None:
        parts = urlsplit(url)
        host = parts.netloc.rpartition("@")[2]
        self.url = urlunsplit((parts.scheme, host, parts.path.rstrip("/") + "/", "", ""))
        self._own = (parts.scheme, host)
        # Random, because whoever can sign an address can have it fetched.
        self._key = secrets.token_bytes(32)
        name, word = unquote(parts.username or ""), unquote(parts.password or "")
        self._auth = urllib3.make_headers(basic_auth=f"{name}:{word}") if name or word else {}
        self._pages = threading.BoundedSemaphore(PAGES_AT_ONCE)
        # Pages may link to any server, so only the index's own server, which an administrator named, is opened.
        self._pool = _Pool(outgoing.Rules.read([*opened, outgoing.server_of(self.url)]))

    def page(self, project: str) -> tuple[int, bytes]:
        """Returns status and page of a project, with its links rewritten to this server."""
        url = urljoin(self.url, quote(project) + "/")
        with self._pages, contextlib.closing(self.ask(url, {"Accept": "text/html"})) as answer:
            if answer.status != 200:
                return answer.status, b""
            data = answer.read(MAX_PAGE, decode_content=True)
            links = Links()
            links.feed(data.decode("utf-8", "replace"))
            base = answer.geturl() or url
            rows = [self._row(urljoin(urljoin(url, base), each["href"]), each) for each in links.found]
        return 200, f"<!DOCTYPE html><title>{html.escape(project)}</title>\n{''.join(rows)}".encode()

    def _row(self, address: str, said: dict[str, str]) -> str:
        address, _, fragment = address.partition("#")
        name = unquote(urlsplit(address).path).rpartition("/")[2]
        coded = base64.urlsafe_b64encode(address.encode()).decode().rstrip("=")
        href = f"/files/{coded}.{self._sign(coded)}/{quote(name)}{f'#{fragment}' if fragment else ''}"
        facts = {key: value for key, value in said.items() if key.startswith("data-")} | {"href": href}
        words = " ".join(f'{key}="{html.escape(value)}"' for key, value in facts.items())
        return f"<a {words}>{html.escape(name)}</a><br>\n"

    def file(self, coded: str, signature: str, name: str, headers: dict[str, str]) -> urllib3.BaseHTTPResponse | None:
        """Returns a file, or its metadata (PEP 658), as the index sends it; None for an address that is on no page of ours."""
        if not hmac.compare_digest(signature, self._sign(coded)):
            return None
        address = base64.urlsafe_b64decode(coded + "=" * (-len(coded) % 4)).decode()
        own = unquote(urlsplit(address).path).rpartition("/")[2]
        if name not in (own, own + _METADATA):
            return None
        return self.ask(address + (_METADATA if name != own else ""), headers | {"Accept-Encoding": "identity"})

    def ask(self, url: str, headers: dict[str, str]) -> urllib3.BaseHTTPResponse:
        parts = urlsplit(url)
        auth = self._auth if (parts.scheme, parts.netloc.rpartition("@")[2]) == self._own else {}
        return self._pool.request("GET", url, headers={**headers, **auth}, preload_content=False)

    def _sign(self, coded: str) -> str:
        return hmac.new(self._key, coded.encode(), hashlib.sha256).hexdigest()[:32]


def _is_tracking(path: str) -> bool:
    """True for tracking's addresses, however servers behind this one read dots."""
    parts = unquote(path.partition("?")[0]).split("/")
    return bool(_TRACKING.fullmatch(path)) and not {".", ".."} & {*parts} and "\\" not in path


class Portal:
    """The portal at `url`, for what programs record. A name below localhost is this machine, whatever resolvers say."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self.host = parts.netloc
        is_here = (parts.hostname or "").endswith(".localhost")
        at = f"127.0.0.1{f':{parts.port}' if parts.port else ''}" if is_here else parts.netloc
        self.url = f"{parts.scheme}://{at}"
        self._pool = urllib3.PoolManager(maxsize=16, retries=False, timeout=TIMEOUT)

    def ask(self, method: str, path: str, headers: dict[str, str], body: bytes | None) -> urllib3.BaseHTTPResponse:
        told = {**headers, "Host": self.host, "Accept-Encoding": "identity"}
        return self._pool.request(
            method, self.url + path, body=body, headers=told, redirect=False, preload_content=False
        )


class Handler(BaseHTTPRequestHandler):
    """One connection. Log lines contain no addresses."""

    protocol_version = "HTTP/1.1"
    timeout = 60
    server: Server

    def address_string(self) -> str:
        return "a task"

    def log_request(self, *_: object) -> None:
        """Logs nothing, because the packages that a task installs are confidential."""

    def do_GET(self) -> None:
        try:
            if _is_tracking(self.path):
                self._track()
                return
            with self.server.place:
                self._answer()
        except outgoing.Closed:
            # Not 502, which pip retries five times. pip shows the reason phrase of a status, never the body. The log is for
            # administrators, the phrase for whoever installs.
            reason = "A file lies on a server that is closed; ask an administrator to open it"
            sys.stderr.write(f"A file lies on a server that is closed; {outgoing.SETTING} opens it.\n")
            self.close_connection = True
            with contextlib.suppress(OSError):
                self._say(403, f"{reason}.", reason)
        except (urllib3.exceptions.HTTPError, UnicodeError, ValueError) as error:
            # Not the error's text: it may contain an address, and this may be the middle of a file.
            whom = "portal" if _is_tracking(self.path) else "package index"
            sys.stderr.write(f"The {whom} could not be asked: {type(error).__name__}.\n")
            self.close_connection = True
            with contextlib.suppress(OSError):
                self._say(502, f"The {whom} does not answer.")
        except OSError:
            self.close_connection = True

    do_HEAD = do_POST = do_PUT = do_GET  # noqa: N815  the names that its base class looks for

    def _track(self) -> None:
        size = self.headers.get("Content-Length", "0")
        if "Transfer-Encoding" in self.headers or not size.isdecimal() or int(size) > MAX_BODY:
            self.close_connection = True
            self._say(413, f"A request has at most {MAX_BODY >> 10} KiB, and says how long it is.")
            return
        if self.server.portal is None:
            self._say(404, "There is nothing but /simple/ here.")
            return
        body = self.rfile.read(int(size)) if int(size) else None
        headers = {name: self.headers[name] for name in _TOLD if name in self.headers}
        with (
            self.server.place,
            contextlib.closing(self.server.portal.ask(self.command, self.path, headers, body)) as answer,
        ):
            self._pass_on(answer)

    def _answer(self) -> None:
        path = self.path.partition("?")[0]
        if self.command not in ("GET", "HEAD") or self.server.index is None:
            self.close_connection = True
            self._say(404, "There is no package index here.")
        elif project := _PROJECT.fullmatch(path):
            status, page = self.server.index.page(project[1])
            if status == 200:
                self._send(200, page, "text/html; charset=utf-8")
            else:
                self._refused(status)
        elif file := _FILE.fullmatch(path):
            headers = {name: self.headers[name] for name in _ASKED if name in self.headers}
            found = self.server.index.file(file[1], file[2], unquote(file[3]), headers)
            if found is None:
                self._say(404, "There is no such file here.")
            else:
                with contextlib.closing(found):
                    if found.status in (200, 206, 304, 416):
                        self._pass_on(found)
                    else:
                        self._refused(found.status)
        else:
            self._say(404, "There is nothing but /simple/ here.")

    def _pass_on(self, found: urllib3.BaseHTTPResponse) -> None:
        self.send_response_only(found.status)
        for name in _ANSWERED:
            if name in found.headers:
                self.send_header(name, found.headers[name])
        if "Content-Length" not in found.headers and found.status != 304:
            self.close_connection = True
            self.send_header("Connection", "close")
        self.end_headers()
        if self.command != "HEAD":
            for piece in found.stream(PIECE, decode_content=False):
                self.wfile.write(piece)

    def _refused(self, status: int) -> None:
        if status in (404, 410):
            self._say(404, "The package index does not have this.")
        else:
            sys.stderr.write(f"The index answered {status}.\n")
            self._say(502, f"The package index answered {status}; an administrator can say why.")

    def _say(self, status: int, sentence: str, reason: str | None = None) -> None:
        self._send(status, (sentence + "\n").encode(), "text/plain; charset=utf-8", reason)

    def _send(self, status: int, body: bytes, kind: str, reason: str | None = None) -> None:
        self.send_response_only(status, reason)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


class Server(socketserver.ThreadingMixIn, socketserver.TCPServer):
    """Listens on a Unix socket, or on a port of all addresses."""

    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = 128

    def __init__(self, place: str | int, index: Index | None, portal: Portal | None = None) -> None:
        self.index, self.portal = index, portal
        self.place = threading.BoundedSemaphore(AT_ONCE)
        if isinstance(place, str):
            self.address_family = socket.AF_UNIX
            with contextlib.suppress(FileNotFoundError):
                os.unlink(place)
            super().__init__(place, Handler)  # type: ignore[arg-type]  # as UnixStreamServer is told it
        else:
            self.address_family = socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET
            super().__init__(("", place), Handler)

    def handle_error(self, request: object, client_address: object) -> None:
        """Logs a disconnected client."""
        sys.stderr.write(f"A connection ended: {type(sys.exc_info()[1]).__name__}.\n")


@contextlib.contextmanager
def listening(path: str, url: str, opened: Sequence[str] = (), portal: str = "") -> Iterator[Server]:
    """Serves at `path`, in a folder that processes of holders may only search for this name. `url`: of the index, "" for none;
    `portal`: of the portal."""
    # A handle of the folder, because socket paths must be short.
    handle = os.open(os.path.dirname(path), os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        servers = Index(url, opened) if url else None, Portal(portal) if portal else None
        with Server(f"/proc/self/fd/{handle}/{os.path.basename(path)}", *servers) as server:
            os.chmod(path, 0o666)  # noqa: S103  its folder says who gets here
            yield server
    finally:
        os.close(handle)


def main(path: str) -> None:
    # Removed from the environment, which children inherit and crash dumps contain.
    url, parent = os.environ.pop("PORTAL_PACKAGE_INDEX", ""), os.getppid()
    portal = os.environ.get("PORTAL_TRACKING", "")
    opened = [each for each in os.environ.get(outgoing.SETTING, "").split(",") if each]
    os.umask(0o077)
    if path.isdigit():
        # Process 1 of a container ignores SIGTERM by default, and has no parent to outlive.
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
        with Server(int(path), Index(url, opened) if url else None, Portal(portal) if portal else None) as server:
            server.serve_forever()
        return
    with listening(path, url, opened, portal) as server:
        # Loads the resolver's libraries while their files are still readable.
        with contextlib.suppress(OSError):
            socket.getaddrinfo(urlsplit(url or portal).hostname, None)
        sandbox.drop_privileges(uids.first() + uids.PACKAGES if os.geteuid() == 0 else None)
        # Must follow the change of user, which resets it.
        sandbox.die_with_parent()
        if os.getppid() != parent:
            return
        server.serve_forever()


if __name__ == "__main__":
    main(sys.argv[1])
