"""What people open: how soon a notebook answers and is gone, and what the gateway costs on the way.

The floors are the same programs without the portal: `jupyter lab` started by hand, and a small web server that is asked
directly. It answers with a word, or with as many bytes as it is asked for, from one thread and without a framework, so that
what the gateway adds is not hidden behind it. JupyterHub's rates were measured once, elsewhere: `floor` says them for comparison.
"""

from __future__ import annotations

import http.client
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from django.conf import settings
from django.utils import timezone

from bench.measures import api_of, until
from bench.results import Result, quantile
from bench.seed import Seeded
from bench.sizes import size
from bench.web import Client, at_once, one_by_one
from clusters.gateway.routes import Route, routers
from clusters.models import Run
from clusters.runs.reconcile import unsettled
from clusters.runs.routing import FILE
from portal.up.services import free_port
from tests.running import Portal

NOTEBOOKS, REQUESTS, ROUNDS = size(5, 1), size(500, 5), size(5, 1)
MEGABYTES = size(256, 4)
STARTS, SENDERS = size(300, 4), 16
PAGE, PAGES = size(50, 2), size(100, 2)
ROUTES = size(2_000, 10)
# What JupyterHub 6.1 did a second on two cores of the same kind: starts of servers that do nothing, and pages of 50 users.
HUB_STARTS, HUB_PAGES = 38, 79
# When it was first asked is the first line of its log.
SERVER = """
import asyncio, os, time
first = []
async def answer(reader, writer):
    try:
        while line := await reader.readline():
            while (await reader.readline()).strip():
                pass
            if not first:
                first.append(print(repr(time.time()), flush=True))
            size = int(b"0" + line.split()[1][1:]) if line.split()[1][1:].isdigit() else 0
            writer.write(b"HTTP/1.1 200 OK\\r\\nContent-Length: %d\\r\\n\\r\\n" % (size or 4) + (b"" if size else b"pong"))
            for _ in range(size >> 20):
                writer.write(bytes(1 << 20))
                await writer.drain()
    except ConnectionError:
        pass
    finally:
        writer.close()
async def main():
    server = await asyncio.start_server(answer, os.environ["HOST"], int(os.environ["PORT"]))
    await server.serve_forever()
asyncio.run(main())
"""


@dataclass(frozen=True)
class Application:
    """One of the first appcode, and its origin as a program with its token sees it."""

    api: Client
    path: str
    origin: Client

    def deploy(self) -> float:
        """Seconds until it answers through the gateway."""
        begin = time.perf_counter()
        self.api.send("POST", f"{self.path}/deploy", {})
        until(lambda: _answers(self.origin), 120)
        return time.perf_counter() - begin

    def disable(self) -> float:
        """Seconds until nothing of it is left."""
        begin = time.perf_counter()
        self.api.send("POST", f"{self.path}/disable", {})
        until(lambda: not Run.objects.filter(gone=False).exists(), 60)
        return time.perf_counter() - begin

    @property
    def run(self) -> Run:
        return Run.objects.get(current_of__name=self.path.rpartition("/")[2])


def serving(portal: Portal, tenants: Seeded) -> list[Result]:
    """applications: a notebook's start and end, the gateway's price, many starts, a page of them"""
    return [*_notebooks(portal, tenants), *_gateway(portal, tenants), *_many(portal, tenants)]


def _notebooks(portal: Portal, tenants: Seeded) -> list[Result]:
    made = {"type": "jupyter", "image": "bench", "flavor": "gpu", "storage": {"size": "1Gi"}}
    lab = _application(portal, tenants, "lab", "notebook", made)
    lab.disable()
    started, ended, by_hand = [], [], []
    for _ in range(NOTEBOOKS):
        by_hand.append(_by_hand())
        started.append(lab.deploy())
        ended.append(lab.disable())
    return [
        Result(
            f"Deploy → a notebook answers through the gateway, median of {NOTEBOOKS}", quantile(started, 0.5), "s", None,
            quantile(by_hand, 0.5), times=1.3,
        ),
        Result(f"Disable → the notebook is gone, worst of {NOTEBOOKS}", max(ended), "s", 2),
    ]  # fmt: skip


def _by_hand() -> float:
    """Seconds until `jupyter lab`, started in a shell, answers."""
    port = free_port()
    with tempfile.TemporaryDirectory() as home:
        env = {"PATH": os.environ["PATH"], "HOME": home, "JUPYTER_RUNTIME_DIR": f"{home}/runtime"}
        argv = [str(Path(sys.executable).with_name("jupyter")), "lab", "--no-browser", "--allow-root", f"--port={port}"]
        with _running([*argv, "--ServerApp.token=", f"--ServerApp.root_dir={home}"], env):
            begin = time.perf_counter()
            until(lambda: _answers(Client(f"http://127.0.0.1:{port}"), "/api"), 120)
            return time.perf_counter() - begin


def _gateway(portal: Portal, tenants: Seeded) -> list[Result]:
    made = {"type": "web", "image": "bench", "flavor": "cpu", "command": f"exec python -c '{SERVER}'"}
    web = _application(portal, tenants, "echo", "web", made | {"endpoints": [{"name": "web", "port": 8080}]})
    port = free_port()
    with _running([sys.executable, "-c", SERVER], {"HOST": "127.0.0.1", "PORT": str(port)}):
        direct = Client(f"http://127.0.0.1:{port}")
        until(lambda: _answers(direct))
        ways = (direct, web.origin)
        for way in ways:
            one_by_one(50, lambda way=way: way.send("GET", "/"))  # type: ignore[misc]
        # In turns, so that what others do to the machine is done to both.
        little: dict[Client, list[float]] = {way: [] for way in ways}
        much: dict[Client, list[float]] = {way: [] for way in ways}
        for _ in range(ROUNDS):
            for way in ways:
                little[way] += one_by_one(REQUESTS // ROUNDS, lambda way=way: way.send("GET", "/"))  # type: ignore[misc]
                much[way] += one_by_one(1, lambda way=way: way.send("GET", f"/{MEGABYTES << 20}"))  # type: ignore[misc]
    added = quantile(little[web.origin], 0.5) - quantile(little[direct], 0.5)
    routes = [_live(portal, web, count) for count in (0, ROUTES)]
    web.disable()
    return [
        Result("The gateway adds to a request: median", added * 1000, "ms", 2, quantile(little[direct], 0.5) * 1000),
        Result(
            f"{MEGABYTES} MB through the gateway: median", quantile(much[web.origin], 0.5), "s", None,
            quantile(much[direct], 0.5), times=1.25,
        ),
        Result(f"A program answers → it is opened, beside {ROUTES:,} routes", routes[1], "s", 1, routes[0]),
    ]  # fmt: skip


def _live(portal: Portal, web: Application, count: int) -> float:
    """Seconds from when the program was first asked for its health to when the gateway leads there, beside `count` others."""
    folder = portal.data / "gateway"
    assert (folder / FILE).exists(), "the folder of the gateway is another one"
    others = folder / "bench.yaml"
    if count:
        others.write_text(
            json.dumps(
                routers((Route(f"r{n}-bench", "127.0.0.1:9") for n in range(count)), settings.APPS_DOMAIN), indent=1
            )
        )
    try:
        web.disable()
        web.deploy()
        end = time.time()
        [log] = (portal.data / "cloud" / "runs" / str(web.run.pk) / "tasks").glob("*/log")
        return end - float(log.read_text().split()[0])
    finally:
        others.unlink(missing_ok=True)


def _many(portal: Portal, tenants: Seeded) -> list[Result]:
    """Starts of programs that do nothing; most of them wait for the one cloud there is, which is told of each."""
    api, places = api_of(portal, tenants), tenants.codes
    spec: dict[str, object] = {"type": "web", "image": "bench", "flavor": "cpu", "command": "exec sleep 600"}
    spec |= {"endpoints": [{"name": "web", "port": 8080}]}
    names = [f"many-{n:03}" for n in range(STARTS)]

    def path(n: int) -> str:
        return f"/appcodes/{places[n // PAGE]}/applications"

    def start(n: int) -> Callable[[], object]:
        document = {"kind": "application", "metadata": {"name": names[n]}, "spec": spec}
        return lambda: api.send("POST", path(n), document)

    begin = time.perf_counter()
    at_once(SENDERS, [start(n) for n in range(STARTS)])
    accepted = time.perf_counter() - begin
    until(lambda: not Run.objects.filter(unsettled(timezone.now())).exists(), 300, every=0.2)
    told = time.perf_counter() - begin
    # The page of one appcode: as many as a page has, and some of them run.
    page = f"{path(0)}?limit={PAGE}"
    assert len(api.json("GET", page)["items"]) == PAGE
    begin = time.perf_counter()
    at_once(SENDERS, [lambda: api.send("GET", page)] * PAGES)
    pages = (time.perf_counter() - begin) / PAGES
    at_once(SENDERS, [lambda n=n: api.send("POST", f"{path(n)}/{names[n]}/disable", {}) for n in range(STARTS)])  # type: ignore[misc]
    until(lambda: not Run.objects.filter(gone=False).exists(), 300, every=0.5)
    return [
        Result(f"{STARTS} starts at once: each accepted in", accepted / STARTS * 1000, "ms", 1000 / 60, 1000 / HUB_STARTS),
        Result(f"{STARTS} starts at once: each told to its cloud in", told / STARTS * 1000, "ms", 1000 / 60, 1000 / HUB_STARTS),
        Result(f"A page of {PAGE} applications by REST", pages * 1000, "ms", 1000 / HUB_PAGES / 5, 1000 / HUB_PAGES),
    ]  # fmt: skip


def _application(portal: Portal, tenants: Seeded, name: str, endpoint: str, spec: dict[str, Any]) -> Application:
    """A new one of the first appcode, which answers."""
    api, code = api_of(portal, tenants), tenants.codes[0]
    path = f"/appcodes/{code}/applications"
    api.send("POST", path, {"kind": "application", "metadata": {"name": name, "appcode": code}, "spec": spec})
    token = api.json("POST", f"{path}/{name}/access/refresh")["token"]
    host = f"{endpoint}-{name}-{code}.{settings.APPS_DOMAIN}:{portal.port}"
    made = Application(
        api,
        f"{path}/{name}",
        Client(f"http://127.0.0.1:{portal.port}", {"Host": host, "Authorization": f"token {token}"}),
    )
    until(lambda: _answers(made.origin), 120)
    return made


def _answers(at: Client, path: str = "/") -> bool:
    try:
        at.send("GET", path)
    except (OSError, http.client.HTTPException, RuntimeError):
        time.sleep(0.03)  # what is asked too often takes the time of what is waited for
        return False
    return True


@contextmanager
def _running(argv: list[str], env: dict[str, str]) -> Iterator[None]:
    process = subprocess.Popen(argv, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield
    finally:
        process.terminate()
        process.wait()
