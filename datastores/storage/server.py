"""The portal's own object storage on one machine: `python -m datastores.storage.server DIR DOOR_PORT STORE_PORT`.

Only SeaweedFS' S3 port authenticates its clients. So SeaweedFS runs in its own network namespace: master, volumes and
filer listen on a loopback that nothing else shares, with their sockets in a private /tmp. The only way in is one Unix
socket, that of S3, in a folder of this user. Two loopback ports of the machine lead there: DOOR_PORT tells the gateway
whether it may pass a request on (door.py), and STORE_PORT connects clients that prove to be the portal or its gateway
to that socket. This process uses no Django, since it is called for each object; it caches keys for a second.

We decided against certificates and tokens for the inner ports: there are many, and a forgotten one is open, while a
private network closes all of them at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import re
import secrets
import signal
import socket
import sys
import sysconfig
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

import psycopg2
from aiohttp import web

from datastores.storage.door import AWAY, HEARD, Grant, Refusal, judge
from datastores.storage.inside import MASTER_PORT, MEMORY, METRICS_PORT
from datastores.storage.operations import Confusing, read
from portal.up.servers import STORAGE_PROOF
from portal.up.services import dies_with_parent, private_folder

Found = TypeVar("Found")
# Seconds for which a stopped key may still work here.
REMEMBERED = 1.0
KEYS_REMEMBERED = 10_000
AT_ONCE = 256 * 1024
MAX_HEAD = 64 * 1024
AGAIN = 1.0
# Seconds for requests that are under way. Its filer would wait longer, for a stream of its own S3 port that never ends.
# Acknowledged writes are on disk before, so the kill that follows loses nothing.
STOP_SECONDS = 3.0
# Seconds until it must have found its volumes. Later, a volume that it cannot load would keep all others away.
LOAD_SECONDS = 30.0

# The store counts once a minute.
MEASURE_SECONDS = 60.0
_SIZE = re.compile(r'^SeaweedFS_s3_bucket_size_bytes\{bucket="([^"]+)"\} (\S+)$', re.MULTILINE)
_METRICS_AT = f"http://127.0.0.1:{METRICS_PORT}/metrics"
_METRICS = f"import urllib.request; print(urllib.request.urlopen('{_METRICS_AT}', timeout=20).read().decode())"
# Prints the ids of volumes in a folder whose place the master does not know yet. Until it knows, reads fail with status 500.
_VOLUMES = """
import json, pathlib, sys, urllib.request
stored = {int(file.stem.rpartition("_")[2]) for file in pathlib.Path(sys.argv[2]).glob("*.dat")}
with urllib.request.urlopen(sys.argv[1], timeout=5) as answer:
    centers = json.load(answer)["Volumes"]["DataCenters"]
servers = [server for racks in centers.values() for servers in racks.values() for server in servers.values()]
assert servers
print(*sorted(stored - {volume["Id"] for server in servers for volume in server}))
"""
_MASTER_AT = f"http://127.0.0.1:{MASTER_PORT}/vol/status"
MEASURED = """
    UPDATE datastores_storage SET used_bytes = told.bytes, measured_at = now()
    FROM unnest(%(buckets)s::text[], %(sizes)s::bigint[]) AS told (bucket, bytes) WHERE datastores_storage.bucket = told.bucket
"""
GRANTS = """
    SELECT bucket, coalesce(used_bytes >= limit_gib * 1073741824::bigint, false)
    FROM datastores_storage WHERE access_key = %(key)s OR own_key = %(key)s
"""


class Keys:
    """Access keys from the database, each cached for at most REMEMBERED seconds. One connection, one query at a time."""

    def __init__(self, database: str) -> None:
        self._database = database
        self._lock = threading.Lock()
        self._connection: psycopg2.extensions.connection | None = None
        self._known: dict[str, tuple[float, Grant | None]] = {}

    async def grant(self, key: str) -> Grant | None:
        """Raises psycopg2.Error while the database is unreachable: expired grants are not used."""
        until, grant = self._known.get(key, (0.0, None))
        if time.monotonic() < until:
            return grant
        # Counted from before the query, so a concurrent change takes effect within REMEMBERED seconds.
        until = time.monotonic() + REMEMBERED
        grant = await asyncio.to_thread(self._ask, key)
        if len(self._known) >= KEYS_REMEMBERED:
            self._known.clear()
        self._known[key] = until, grant
        return grant

    async def note(self, sizes: Mapping[str, int]) -> None:
        """Stores the bytes in buckets, by bucket name."""
        said = {"buckets": [*sizes], "sizes": [*sizes.values()]}
        await asyncio.to_thread(self._tried, lambda cursor: cursor.execute(MEASURED, said))

    def _ask(self, key: str) -> Grant | None:
        def row(cursor: psycopg2.extensions.cursor) -> Grant | None:
            cursor.execute(GRANTS, {"key": key})
            found = cursor.fetchone()
            return Grant(*found) if found else None

        return self._tried(row)

    def _tried(self, work: Callable[[psycopg2.extensions.cursor], Found]) -> Found:
        with self._lock:
            try:
                return self._done(work)
            except psycopg2.OperationalError:
                # The database was restarted.
                self._connection = None
                return self._done(work)

    def _done(self, work: Callable[[psycopg2.extensions.cursor], Found]) -> Found:
        if self._connection is None or self._connection.closed:
            self._connection = psycopg2.connect(self._database, connect_timeout=2, options="-c statement_timeout=2000")
            self._connection.autocommit = True
        with self._connection.cursor() as cursor:
            return work(cursor)


class Door:
    """The gateway's authorisation endpoint: answers headers with 200 or a refusal."""

    def __init__(self, keys: Keys) -> None:
        self._keys = keys

    async def answer(self, request: web.BaseRequest) -> web.Response:
        said = request.headers
        uri = said.get("X-Forwarded-Uri", "")
        refusal = await self._refusal(request, uri)
        if refusal is None:
            return web.Response()
        text = "" if said.get("X-Forwarded-Method") == "HEAD" else refusal.xml(uri.partition("?")[0])
        return web.Response(status=refusal.status, text=text, content_type="application/xml")

    async def _refusal(self, request: web.BaseRequest, uri: str) -> Refusal | None:
        one = {}
        for name in ("X-Forwarded-Method", *HEARD):
            values = request.headers.getall(name, [])
            if len(values) > 1:
                return Refusal(400, "InvalidRequest", f"The header {name} stands there twice.")
            one[name] = values[0] if values else ""
        method, authorization, copy_source, encryption, length, digest = one.values()
        try:
            asked = read(
                method,
                uri,
                authorization=authorization,
                copy_source=copy_source,
                encryption=encryption,
                body=length or digest,
            )
            grant = await self._keys.grant(asked.access_key) if asked.access_key else None
            return judge(asked, grant, time.time())
        except Confusing as error:
            return Refusal(400, "InvalidURI", str(error))
        except psycopg2.Error as error:
            print(f"The database cannot be asked: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
            return AWAY


class Forwarder:
    """Forwards bytes from a port to a Unix socket. The first request on a connection proves the client: it has sent all
    later ones, too."""

    def __init__(self, to: str, proof: str) -> None:
        self._to = to
        self._proof = f"\r\n{STORAGE_PROOF}: {proof}\r\n".lower().encode()
        self._led: set[asyncio.Task[None]] = set()

    async def serve(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                comer, _ = await loop.sock_accept(listening)
            except OSError as error:
                if error.errno != errno.ECONNABORTED:
                    await asyncio.sleep(AGAIN)  # out of file descriptors
                continue
            task = loop.create_task(self._lead(comer))
            self._led.add(task)
            task.add_done_callback(self._led.discard)

    async def _lead(self, comer: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        with comer, socket.socket(socket.AF_UNIX) as store:
            store.setblocking(False)
            try:
                comer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                head = await self._head(comer)
                if not self._proves(head):
                    return
                await loop.sock_connect(store, self._to)
                await loop.sock_sendall(store, head)
                async with asyncio.TaskGroup() as halves:
                    halves.create_task(_pump(comer, store))
                    halves.create_task(_pump(store, comer))
            except* OSError:
                pass  # one end is gone, so nothing can be reported to it

    async def _head(self, comer: socket.socket) -> bytes:
        head = b""
        while b"\r\n\r\n" not in head and len(head) < MAX_HEAD:
            piece = await asyncio.get_running_loop().sock_recv(comer, AT_ONCE)
            if not piece:
                break
            head += piece
        return head

    def _proves(self, head: bytes) -> bool:
        first = (head.partition(b"\r\n\r\n")[0] + b"\r\n").lower()
        at = first.find(self._proof[: len(STORAGE_PROOF) + 4])
        return at >= 0 and secrets.compare_digest(first[at : at + len(self._proof)], self._proof)


async def _pump(source: socket.socket, target: socket.socket) -> None:
    loop, buffer = asyncio.get_running_loop(), memoryview(bytearray(AT_ONCE))
    while size := await loop.sock_recv_into(source, buffer):
        await loop.sock_sendall(target, buffer[:size])
    target.shutdown(socket.SHUT_WR)


def sizes(text: str) -> dict[str, int]:
    """Bytes by bucket from the store's metrics, as stored: compressible data counts less."""
    return {bucket: int(float(size)) for bucket, size in _SIZE.findall(text)}


async def ask(store: int, *program: str) -> str:
    """Runs a Python program inside the store's network and returns its output. Raises OSError, also if it fails."""
    owner = [] if os.geteuid() == 0 else ["--user", "--preserve-credentials"]
    argv = ["nsenter", "--target", str(store), "--net", *owner, "--", sys.executable, "-I", "-c", *program]
    asked = await asyncio.create_subprocess_exec(
        *argv, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE, stdin=asyncio.subprocess.DEVNULL
    )
    said, errors = await asked.communicate()
    if asked.returncode:
        raise OSError(errors.decode(errors="replace").strip().rpartition("\n")[2])
    return said.decode()


async def load(store: int, folder: Path) -> None:
    """Waits until the store can read every volume in its folder, at most LOAD_SECONDS; then it says which it cannot."""
    missing = "all"
    try:
        async with asyncio.timeout(LOAD_SECONDS):
            while missing:
                with contextlib.suppress(OSError):
                    missing = (await ask(store, _VOLUMES, _MASTER_AT, str(folder))).strip()
                await asyncio.sleep(0.1 if missing else 0)
    except TimeoutError:
        print(
            f"Objects cannot be read, because the store did not load these volumes: {missing}",
            file=sys.stderr,
            flush=True,
        )


async def measure(store: int, keys: Keys) -> None:
    """Reads the store's metrics, for ever. After an error it tries again a minute later."""
    while True:
        await asyncio.sleep(MEASURE_SECONDS)
        try:
            await keys.note(sizes(await ask(store, _METRICS)))
        except (OSError, psycopg2.Error) as error:
            print(f"What is in buckets cannot be told: {type(error).__name__}", file=sys.stderr, flush=True)


def command(folder: Path, sockets: Path) -> list[str]:
    """The command for SeaweedFS with its data in `folder`, in its own namespaces; `sockets` is the folder of its only socket."""
    namespaces = ["unshare", "--net", "--mount", *([] if os.geteuid() == 0 else ["--map-root-user"]), "--"]
    inside = [sys.executable, "-m", "datastores.storage.inside", str(folder), str(sockets)]
    weed = Path(sysconfig.get_path("scripts")) / "weed"
    return [*namespaces, *dies_with_parent([*inside, str(weed)])]


async def run(folder: Path, door_port: int, store_port: int) -> int:
    """Runs until SIGTERM or SIGINT, or until the store ends by itself; then the exit status is 1."""
    loop, told = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, told.set)
    sockets = private_folder(folder.with_name(f"{folder.name}-run"))
    (sockets / "s3").unlink(missing_ok=True)
    private_folder(folder)
    proof = os.environ.pop("PORTAL_STORAGE_PROOF")
    keys = Keys(os.environ.pop("DATABASE_URL"))
    env = {
        **{name: value for name, value in os.environ.items() if not name.startswith("PORTAL_")},
        "AWS_ACCESS_KEY_ID": os.environ["PORTAL_STORAGE_ACCESS_KEY"],
        "AWS_SECRET_ACCESS_KEY": os.environ["PORTAL_STORAGE_SECRET_KEY"],
        **MEMORY,
    }
    store = await asyncio.create_subprocess_exec(*command(folder, sockets), env=env, stdin=asyncio.subprocess.DEVNULL)
    ended = asyncio.create_task(store.wait())
    stop = asyncio.create_task(told.wait())
    loaded = asyncio.create_task(load(store.pid, folder))
    await asyncio.wait({ended, stop, loaded}, return_when=asyncio.FIRST_COMPLETED)
    loaded.cancel()
    # A handle on the folder: a Unix socket's address has at most 107 bytes, and the data folder's path may be longer.
    handle = os.open(sockets, os.O_PATH | os.O_DIRECTORY)
    door = web.ServerRunner(web.Server(Door(keys).answer, access_log=None))
    await door.setup()
    await web.TCPSite(door, "127.0.0.1", door_port, backlog=1024).start()
    listening = socket.create_server(("127.0.0.1", store_port), backlog=1024)
    listening.setblocking(False)
    led = asyncio.create_task(Forwarder(f"/proc/self/fd/{handle}/s3", proof).serve(listening))
    measured = asyncio.create_task(measure(store.pid, keys))
    await asyncio.wait({ended, stop}, return_when=asyncio.FIRST_COMPLETED)
    listening.close()
    led.cancel()
    measured.cancel()
    await door.cleanup()
    if store.returncode is not None:
        return 1
    store.terminate()
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(ended, STOP_SECONDS)
        return 0
    store.kill()
    await store.wait()
    return 0


if __name__ == "__main__":
    sys.exit(asyncio.run(run(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))))
