#!/usr/bin/python3 -I
"""Reads Git repositories over HTTPS: the commit that a ref names, and the files of a commit.

The portal resolves a ref when it plans a run. Whatever starts the run fetches the files: on this machine the storage process
(local/data/code.py), on Kubernetes a container of docker/rclone, whose program this module is. dulwich speaks the protocol, so
nothing of a repository is ever executed: no hook, filter, helper or submodule, and no other protocol.

Naming a repository means naming a server. So portal/network/outgoing.py makes each connection, no answer can redirect to
another server, and everything read has a size and a time limit. Name and token are sent to that server only.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import resource
import shutil
import signal
import socket
import stat
import sys
import threading
import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import urllib3
from dulwich.client import HTTPUnauthorized, Urllib3HttpGitClient
from dulwich.errors import FileFormatException, GitProtocolError, NotGitRepository
from dulwich.object_store import DiskObjectStore
from dulwich.objects import Commit, Tag, Tree
from dulwich.repo import Repo
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool
from urllib3.exceptions import NewConnectionError, SSLError

# Seconds: to connect, to the next piece of an answer, for all requests of the portal, for all files of a commit.
CONNECT, PIECE, ASK, FETCH = 5.0, 30.0, 20.0, 900
# Maximum bytes: of a list of refs, of a fetch, of the files. More data belong into a datastore.
MOST_REFS, MOST_FETCHED, MOST_BYTES = 16 << 20, 512 << 20, 2 << 30
MOST_FILES, DEEPEST = 100_000, 100
MEMORY = 1 << 30
# Exit code for an error that a retry would not fix, as in docker/rclone/fetch.
REFUSED = 77
TRIES = 5

COMMIT = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")

# Connects to a host and port. Raises OSError, and Refused for a closed address.
Connect = Callable[[str, int], socket.socket]


class Failed(Exception):
    """A retry may help. The text is a sentence for people."""


class Refused(Failed):
    """A retry would fail again."""


@dataclass(frozen=True)
class Login:
    """Credentials for a server; `token` is sent as the password."""

    name: str = ""
    token: str = field(default="", repr=False)


def judged(outgoing: Any, rules: Any) -> Connect:
    """Returns a function that connects by the rules of `outgoing`: portal/network/outgoing.py, perhaps loaded by path."""

    def connect(host: str, port: int) -> socket.socket:
        try:
            made: socket.socket = outgoing.connect(host, port, rules, CONNECT)
        except outgoing.Closed as error:
            raise Refused(str(error)) from None
        return made

    return connect


def anywhere(host: str, port: int) -> socket.socket:
    """Connects without checks: the pod's NetworkPolicy decides."""
    return socket.create_connection((host.strip("[]"), port), timeout=CONNECT)


def resolve(url: str, ref: str, login: Login, connect: Connect) -> str:
    """Returns the commit of a branch, a tag or a full name (refs/…) now. "" means the server's HEAD; a commit is returned as is.
    Raises Failed."""
    if COMMIT.fullmatch(ref):
        return ref
    text = ref.encode()
    names = [text] if ref.startswith("refs/") else [b"refs/heads/" + text, b"refs/tags/" + text] if ref else [b"HEAD"]
    with _client(url, login, connect, MOST_REFS, ASK) as client:
        refs: Mapping[Any, bytes | None] = client.get_refs("", ref_prefix=names).refs
    for name in names:
        if commit := refs.get(name + b"^{}") or refs.get(name):
            return commit.decode()
    raise Refused(f"{url} has no branch or tag “{ref}”." if ref else f"{url} is an empty repository.")


def checkout(url: str, commit: str, folder: str, store: str, login: Login, connect: Connect) -> None:
    """Writes the files of a commit into `folder`, and Git's objects into `store`; both must be empty. Raises Failed."""
    wanted = commit.encode()
    with Repo.init_bare(store) as repo, _client(url, login, connect, MOST_FETCHED, FETCH) as client:
        # Lists only HEAD's ref: the commit need not be the head of any branch now.
        client.fetch("", repo, determine_wants=lambda *_, **__: [wanted], depth=1, ref_prefix=[b"HEAD"])  # type: ignore[arg-type]
        try:
            found = repo.object_store[wanted]  # type: ignore[index]
            while isinstance(found, Tag):
                found = repo.object_store[found.object[1]]
            if not isinstance(found, Commit):
                raise Refused(f"{commit} is no commit of {url}.")
            _write(repo.object_store, found.tree, os.fsencode(folder))
        except KeyError:
            raise Refused(f"{url} did not send all of commit {commit}; it may be no longer there.") from None


def _write(store: DiskObjectStore, top: Any, folder: bytes) -> None:
    """Iterative, because a tree may contain itself many times over. Follows no links: a name that exists is an error."""
    files = size = 0
    trees = [(top, folder, 0)]
    while trees:
        name, place, depth = trees.pop()
        tree = store[name]
        if not isinstance(tree, Tree) or depth > DEEPEST:
            raise Refused("The repository has folders that are none, or too deep.")
        for entry in tree.items():
            files += 1
            if entry.path in (b"", b".", b"..") or b"/" in entry.path or b"\0" in entry.path:
                raise Refused("The repository has a file whose name leads elsewhere.")
            path = os.path.join(place, entry.path)
            if stat.S_ISDIR(entry.mode):
                os.mkdir(path, 0o755)
                trees.append((entry.sha, path, depth + 1))
            elif stat.S_IFMT(entry.mode) == 0o160000:  # a submodule: an empty folder
                os.mkdir(path, 0o755)
            else:
                data = store[entry.sha].as_raw_string()
                size += len(data)
                if stat.S_ISLNK(entry.mode):
                    os.symlink(data, path)
                else:
                    mode = 0o755 if entry.mode & 0o111 else 0o644
                    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode), "wb") as file:
                        file.write(data)
            if files > MOST_FILES or size > MOST_BYTES:
                raise Refused(
                    f"The repository has more than {MOST_FILES:,} files or {MOST_BYTES >> 30} GiB; put data into a datastore."
                )


@contextlib.contextmanager
def _client(url: str, login: Login, connect: Connect, most: int, seconds: float) -> Iterator[_Client]:
    """Opens a client that is cut off after `seconds`, whatever the server does. Turns errors into sentences."""
    host = urlsplit(url).netloc
    client = _Client(url, login, connect, most)
    watch = threading.Timer(seconds, client.cut)
    watch.start()
    try:
        yield client
    except Failed:
        raise
    except HTTPUnauthorized:
        raise Refused(_refused(host, login)) from None
    except NotGitRepository:
        raise Refused(
            f"There is no Git repository at {url}{'' if login.name else ', or none without a token'}."
        ) from None
    except (GitProtocolError, urllib3.exceptions.HTTPError, OSError) as error:
        if client.is_cut:
            raise Failed(f"{host} took longer than {seconds:g} seconds.") from None
        raise _why(host, login, error) from None
    except (ValueError, AssertionError, LookupError, TypeError, EOFError, zlib.error, FileFormatException) as error:
        raise Refused(f"What {host} answers is no Git ({type(error).__name__}).") from error
    finally:
        watch.cancel()
        client.cut()


def _refused(host: str, login: Login) -> str:
    if login.name:
        return f"{host} refused the name and token that this appcode has for it."
    return f"{host} wants a name and a token: there is no such repository, or it is a private one. Save them for this appcode."


def _why(host: str, login: Login, error: Exception) -> Failed:
    text = str(error)
    if "http resp 403" in text:
        return Refused(_refused(host, login))
    if "not our ref" in text or "not reachable" in text or "unadvertised object" in text:
        return Refused(f"{host} does not have this commit, or does not give it by its name.")
    if found := re.search(r"http resp (\d+)", text):
        return (Failed if found[1][0] == "5" or found[1] == "429" else Refused)(f"{host} answered {found[1]}.")
    cause: BaseException | None = error
    while cause is not None:
        reason = getattr(cause, "reason", None)
        if isinstance(cause, SSLError):
            return Failed(f"The certificate of {host} is not accepted.")
        if isinstance(cause, NewConnectionError | urllib3.exceptions.TimeoutError | socket.gaierror):
            break
        cause = reason if isinstance(reason, BaseException) else cause.__cause__
    return Failed(f"{host} cannot be reached." if cause is not None else f"{host} broke off: {text[:200].rstrip('.')}.")


class _Client(Urllib3HttpGitClient):
    """Reads at most `most` bytes, from one server only."""

    def __init__(self, url: str, login: Login, connect: Connect, most: int) -> None:
        self.left, self.is_cut = most, False
        self.sockets: list[socket.socket] = []
        pool = _Pool(url, self._connector(connect))
        super().__init__(
            url, dumb=False, pool_manager=pool, username=login.name or None, password=login.token, quiet=True
        )

    def cut(self) -> None:
        self.is_cut = True
        for each in self.sockets:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def _http_request(self, url: str, headers: Any = None, data: Any = None, raise_for_status: bool = True) -> Any:
        response, read = super()._http_request(url, headers, data, raise_for_status)
        if not str(response.headers.get("Content-Type", "")).startswith("application/x-git-"):
            response.close()
            raise NotGitRepository

        def counted(size: int) -> bytes:
            piece = read(size)
            self.left -= len(piece)
            if self.left < 0:
                raise Refused(f"{urlsplit(url).netloc} sent more than is read; put data into a datastore.")
            return piece

        return response, counted

    def _connector(self, connect: Connect) -> Connect:
        def kept(host: str, port: int) -> socket.socket:
            made = connect(host, port)
            made.settimeout(PIECE)
            self.sockets.append(made)
            return made

        return kept


class _Pool(urllib3.PoolManager):
    """Connects with `connect`, and only to the server of `url`, even after a redirect."""

    def __init__(self, url: str, connect: Connect) -> None:
        super().__init__(
            retries=urllib3.Retry(total=3, connect=0, read=0, status=0, other=0, redirect=3),
            timeout=urllib3.Timeout(connect=CONNECT, read=PIECE),
        )
        self.server = urlsplit(url)[:2]

        class Plain(HTTPConnection):
            def _new_conn(self) -> socket.socket:
                return _connected(self, connect)

        class Secure(HTTPSConnection):
            def _new_conn(self) -> socket.socket:
                return _connected(self, connect)

        class PlainPool(HTTPConnectionPool):
            ConnectionCls = Plain

        class SecurePool(HTTPSConnectionPool):
            ConnectionCls = Secure

        self.pool_classes_by_scheme = {"http": PlainPool, "https": SecurePool}

    def urlopen(self, method: str, url: str, *more: Any, **options: Any) -> Any:
        if urlsplit(url)[:2] != self.server:
            raise Refused(f"{self.server[1]} leads to another server, {urlsplit(url).netloc}; give the address there.")
        return super().urlopen(method, url, *more, **options)


def _connected(self: HTTPConnection, connect: Connect) -> socket.socket:
    assert self.port is not None
    try:
        return connect(self.host, self.port)
    except OSError as error:
        raise NewConnectionError(self, str(error)) from error


def main(url: str, commit: str, folder: str, store: str, path: str) -> int:
    """Program: GIT_NAME and GIT_TOKEN are the login. GIT_OUTGOING may name a copy of portal/network/outgoing.py, which then
    connects by the rules in GIT_OPEN. Prints the reason of a failure last."""
    signal.alarm(FETCH)
    os.umask(0o022)
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
    login = Login(os.environ.get("GIT_NAME", ""), os.environ.get("GIT_TOKEN", ""))
    module = os.environ.get("GIT_OUTGOING", "")
    connect = loaded(module, os.environ["GIT_OPEN"]) if module else anywhere
    for left in reversed(range(1 if module else TRIES)):
        # Clean up after an earlier try.
        for each in os.scandir(folder):
            shutil.rmtree(each.path) if each.is_dir(follow_symlinks=False) else os.unlink(each.path)
        shutil.rmtree(store, ignore_errors=True)
        os.mkdir(store)
        try:
            checkout(url, commit, folder, store, login, connect)
            if not os.path.isdir(os.path.join(folder, path)):
                raise Refused(f"There is no folder {path} in commit {commit[:12]} of {url}.")
            return 0
        except Failed as error:
            if isinstance(error, Refused) or not left:
                print(error, file=sys.stderr)
                return REFUSED if isinstance(error, Refused) else 1
            time.sleep(TRIES - left)
        finally:
            shutil.rmtree(store, ignore_errors=True)
    return 1


def loaded(module: str, entries: str) -> Connect:
    """Returns a function that connects as `module`, a copy of portal/network/outgoing.py, does with the rules `entries`."""
    found = importlib.util.spec_from_file_location("outgoing", module)
    assert found is not None
    assert found.loader is not None
    outgoing = importlib.util.module_from_spec(found)
    # Its dataclasses look the module up there.
    sys.modules["outgoing"] = outgoing
    found.loader.exec_module(outgoing)
    return judged(outgoing, outgoing.Rules.read(entries.split(",")))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
