"""Shared by the tests of routers: a router as a process, replicas as processes, and the rows that describe them."""

from __future__ import annotations

import hashlib
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from django.db import connection, transaction
from django.db.models import F

from clusters.runs.models import Cluster
from clusters.services.models import Replica, Revision, Service, ServiceToken
from clusters.services.notify import routes_changed
from portal.up.services import free_port
from tests.conftest import new_people
from tests.running import ROOT, eventually

HOST = "digits-ops-demo.serve.localhost:8000"
SPEC = {"model": "digits@champion", "requestSeconds": 10, "replicas": {"target": 4}}

# Answers with its name and the request. `/slow` waits for the file `go`; `/long?break` dies in the middle of its answer.
REPLICA = """
import asyncio, json, os, sys
from aiohttp import web

name, port, folder = sys.argv[1], int(sys.argv[2]), sys.argv[3]

async def answer(request):
    body = b"".join([piece async for piece in request.content.iter_any()])
    if request.path == "/slow":
        open(f"{folder}/slow-{name}", "a").close()
        while not os.path.exists(f"{folder}/go"):
            await asyncio.sleep(0.01)
    if request.path == "/die":
        os._exit(1)
    if request.path == "/long":
        response = web.StreamResponse()
        await response.prepare(request)
        for n in range(64):
            await response.write(bytes([n]) * 65536)
            if "break" in request.query and n == 20:
                os._exit(1)
        return response
    await asyncio.sleep(float(request.query.get("seconds", 0)))
    said = {"who": name, "method": request.method, "path": request.raw_path, "size": len(body)}
    said["headers"] = dict(request.headers)
    status = int(request.query.get("status", 200))
    headers = {"X-Portal-Secret": "no", "X-Portal-Rows": request.query.get("rows", "1"), "X-Own": "yes"}
    return web.json_response(said, status=status, headers=headers)

async def main():
    runner = web.ServerRunner(web.Server(answer, access_log=None))
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    print("ready", flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


# Plays the holder of a run's network on one machine, which accepts connections at a port even if the program behind it does not
# listen, and hands them over; or the entrance of a pod, which hands over nothing.
HOLDER = """
import signal, socket, sys
from clusters.clouds.drivers.local.network import forward, sockets

port, proof, held = int(sys.argv[1]), sys.argv[2], sys.argv[3]
listening = socket.create_server(("127.0.0.1", 0))
given = {port: sockets.listen(listening.getsockname()[1])} if held == "handed" else {}
forward.begin({port: listening}, given, proof)
print(listening.getsockname()[1], flush=True)
signal.pause()
"""


class Answered(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> str:
        return str(self.json["error"])


class World:
    """A service with revisions and replicas, in rows; `route` notifies routers of changes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.processes: dict[int, subprocess.Popen[str]] = {}
        self.holders: list[subprocess.Popen[str]] = []
        self.appcode = new_people().ops
        self.service = self.new_service("digits")
        self.token = self.new_token()

    def new_service(self, name: str) -> Service:
        return Service.objects.create(appcode=self.appcode, name=name, label=f"{name}-ops-demo", spec=SPEC)

    def new_token(self, name: str = "checkout", service: Service | None = None, **limits: Any) -> str:
        text = f"gps_{name}-{os.urandom(8).hex()}"
        with self.route(service):
            ServiceToken.objects.create(
                service=service or self.service, name=name, digest=hashlib.sha256(text.encode()).hexdigest(),
                begins=text[:10], **limits,
            )  # fmt: skip
        return text

    def revision(self, number: int, **fields: Any) -> Revision:
        return Revision.objects.create(service=self.service, number=number, model=f"digits/{number}", spec={}, **fields)

    def replica(self, revision: Revision, slot: int, *, held: str = "") -> Replica:
        """A replica that already answers. If `held`: behind a holder that hands connections over (“handed”), or
        an entrance (“entrance”)."""
        port = free_port()
        self.start(slot, port)
        cluster = Cluster.objects.create(appcode=self.appcode, name=f"digits-{slot}", spec={"framework": "serving"})
        if held:
            argv = [sys.executable, "-c", HOLDER, str(port), cluster.proof, held]
            self.holders.append(subprocess.Popen(argv, cwd=ROOT, stdout=subprocess.PIPE, text=True))
            assert self.holders[-1].stdout
            port = int(self.holders[-1].stdout.readline())
        return Replica.objects.create(
            service=self.service,
            revision=revision,
            slot=slot,
            state="serving",
            address=f"127.0.0.1:{port}",
            cluster=cluster,
        )

    def start(self, slot: int, port: int) -> None:
        argv = [sys.executable, "-c", REPLICA, f"replica-{slot}", str(port), str(self.folder)]
        process = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
        assert process.stdout
        assert process.stdout.readline() == "ready\n"
        self.processes[slot] = process

    @contextmanager
    def route(self, service: Service | None = None) -> Iterator[None]:
        """Changes made inside form a new route; routers are notified on commit."""
        with transaction.atomic():
            yield
            if service or hasattr(self, "service"):
                Service.objects.filter(pk=(service or self.service).pk).update(route=F("route") + 1)
            routes_changed()

    def kill(self, slot: int) -> None:
        self.processes[slot].kill()
        self.processes[slot].wait()

    def end(self) -> None:
        for process in (*self.processes.values(), *self.holders):
            process.kill()
            process.wait()


class Router:
    """`manage.py router` on its own port, with this test's database."""

    def __init__(self, folder: Path, database: str = "") -> None:
        self.folder, self.port = folder, free_port()
        self.log = folder / "router.log"
        self._database = database or address()
        self.process = self._started()

    def _started(self) -> subprocess.Popen[bytes]:
        env = {**os.environ, "DATABASE_URL": self._database, "PORTAL_DATA": str(self.folder)}
        env |= {"PORTAL_SERVE_ORIGIN": "http://serve.localhost:8000", "DJANGO_SETTINGS_MODULE": "portal.settings"}
        with self.log.open("ab") as log:
            argv = [sys.executable, "manage.py", "router", "--port", str(self.port)]
            return subprocess.Popen(argv, cwd=ROOT, env=env, stdout=log, stderr=log)

    def restart(self) -> None:
        self.process = self._started()

    def ready(self) -> bool:
        try:
            return self.ask("/.portal/health").status == 200
        except OSError:
            return False

    def ask(
        self, path: str = "/v2", body: bytes | None = None, *, token: str = "", method: str = "",
        host: str = HOST, **headers: str,
    ) -> Answered:  # fmt: skip
        sent = {"Host": host, **{name.replace("_", "-"): value for name, value in headers.items()}}
        if token:
            sent["Authorization"] = f"Bearer {token}"
        client = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            client.request(method or ("GET" if body is None else "POST"), path, body, sent)
            answer = client.getresponse()
            return Answered(answer.status, dict(answer.getheaders()), answer.read())
        finally:
            client.close()

    def until(self, condition: Callable[[], bool]) -> None:
        assert eventually(condition, 20), self.log.read_text()[-3000:]

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.process.wait(60)


class Load:
    """Callers that send requests without pause, each on its own connection, until the block ends or the router stops. `done`
    counts answers by replica; `failed` lists the caller's number and the result of all requests without status 200."""

    def __init__(self, router: Router, token: str, *, callers: int = 50, path: str = "/v2?seconds=0.02") -> None:
        self.done: Counter[str] = Counter()
        self.failed: list[tuple[int, str]] = []
        self._over = threading.Event()
        self._threads = [
            threading.Thread(target=self._call, args=(number, router, token, path)) for number in range(callers)
        ]

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()

    def more(self, count: int = 200) -> None:
        """Waits until that many more requests are answered."""
        wanted = sum(self.done.values()) + count
        assert eventually(lambda: sum(self.done.values()) >= wanted or len(self.failed) > 200, 30), self.failed[:5]

    def _call(self, number: int, router: Router, token: str, path: str) -> None:
        client = http.client.HTTPConnection("127.0.0.1", router.port, timeout=60)
        headers = {"Host": HOST, "Authorization": f"Bearer {token}"}
        while not self._over.is_set():
            try:
                client.request("POST", path, b"[1, 2, 3]", headers)
                answer = client.getresponse()
                body = answer.read()
                if answer.status == 200:
                    self.done[json.loads(body)["who"]] += 1
                else:
                    self.failed.append((number, f"{answer.status} {body.decode()}"))
            except ConnectionRefusedError:
                break
            except (OSError, http.client.HTTPException) as error:
                client.close()
                self.failed.append((number, repr(error)))
        client.close()


class Wire:
    """A proxy in front of PostgreSQL that can be `cut`; while it is `held` it transfers nothing."""

    def __init__(self) -> None:
        said = connection.settings_dict
        folder = said["HOST"] or said["OPTIONS"]["host"]
        self._far = f"{folder}/.s.PGSQL.{said['PORT'] or 5432}"
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._ends: set[socket.socket] = set()
        self._flows = threading.Event()
        self._flows.set()
        self._is_cut = False
        self.address = f"postgresql://{said['USER']}@127.0.0.1:{self._listener.getsockname()[1]}/{said['NAME']}"
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        self._is_cut = True
        for each in tuple(self._ends):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def mend(self) -> None:
        self._is_cut = False

    def hold(self) -> None:
        self._flows.clear()

    def end(self) -> None:
        self._flows.set()
        self.cut()
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                if self._is_cut:
                    near.close()
                    continue
                far = socket.socket(socket.AF_UNIX)
                far.connect(self._far)
                self._ends |= {near, far}
                for one, other in ((near, far), (far, near)):
                    threading.Thread(target=self._pass, args=(one, other), daemon=True).start()

    def _pass(self, one: socket.socket, other: socket.socket) -> None:
        with suppress(OSError):
            while data := one.recv(65536):
                self._flows.wait()
                other.sendall(data)
        for each in (one, other):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        self._ends.discard(one)
        one.close()


def address() -> str:
    """URL of this test process's database."""
    said = connection.settings_dict
    return f"postgresql://{said['USER']}@/{said['NAME']}?host={said['HOST'] or said['OPTIONS'].get('host', '')}"
