"""Applications: how soon a notebook answers and is gone, and what the gateway costs.

The floors are the same programs without the portal: `jupyter lab` started by hand, and a small web server called directly. That
server answers with a word or with the requested number of bytes, from one thread and without a framework, so that its own time
does not hide the gateway's. JupyterHub's rates were measured once, elsewhere; they appear as `floor` for comparison.
"""

from __future__ import annotations

import http.client
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from django.conf import settings
from django.utils import timezone

from bench.floors import running
from bench.portal.measures import api_of, until
from bench.results import Result, quantile
from bench.seed import Seeded
from bench.sizes import size
from bench.web import Client, at_once, one_by_one
from clusters.gateway.traefik import Route, routers
from clusters.runs.models import Run
from clusters.runs.reconcile import unsettled
from clusters.runs.routing import FILE
from portal.up.services import free_port
from tests.running import Portal

NOTEBOOKS, REQUESTS, WARM_UP, ROUNDS = size(5, 0), size(500, 1), size(50, 0), size(5, 1)
MEGABYTES = size(256, 1)
STARTS, SENDERS = size(300, 2), 16
PAGE, PAGES = size(50, 2), size(100, 2)
ROUTES = size(2_000, 10)
# JupyterHub 6.1 on two cores of the same kind, per second: starts of servers that do nothing, and pages of 50 users.
HUB_STARTS, HUB_PAGES = 38, 79
# The first line of its log is the time of its first request.
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
    """An application of the first appcode. `origin` is its address as a program with its token calls it, `first` the seconds
    from its creation until it answered there."""

    api: Client
    path: str
    origin: Client
    first: float

    def deploy(self) -> float:
        """Deploys it and returns the seconds until it answers through the gateway."""
        begin = time.perf_counter()
        self.api.send("POST", f"{self.path}/deploy", {})
        until(lambda: _answers(self.origin), 120)
        return time.perf_counter() - begin

    def disable(self) -> float:
        """Disables it and returns the seconds until all its runs are gone."""
        begin = time.perf_counter()
        self.api.send("POST", f"{self.path}/disable", {})
        until(lambda: not Run.objects.filter(gone=False).exists(), 60)
        return time.perf_counter() - begin

    @property
    def run(self) -> Run:
        return Run.objects.get(current_of__name=self.path.rpartition("/")[2])


def serving(portal: Portal, tenants: Seeded) -> list[Result]:
    """applications: a notebook's start and end, the gateway's cost, many starts, a page of them"""
    return [*_notebooks(portal, tenants), *_gateway(portal, tenants), *_many(portal, tenants)]


def _notebooks(portal: Portal, tenants: Seeded) -> list[Result]:
    made = {"type": "jupyter", "image": "bench", "flavor": "gpu", "storage": {"size": "1Gi"}}
    lab = _application(portal, tenants, "lab", "notebook", made)
    # The first start makes the storage, too: it counts only if it is the only one.
    rounds = [(lab.first, lab.disable(), _by_hand())]
    rounds += [(lab.deploy(), lab.disable(), _by_hand()) for _ in range(NOTEBOOKS)]
    started, ended, by_hand = zip(*(rounds[1:] or rounds), strict=True)
    return [
        Result(
            f"Deploy → a notebook answers through the gateway, median of {len(started)}", quantile(started, 0.5), "s", None,
            quantile(by_hand, 0.5), times=1.3,
        ),
        Result(f"Disable → the notebook is gone, worst of {len(ended)}", max(ended), "s", 2),
    ]  # fmt: skip


def _by_hand() -> float:
    """Seconds until `jupyter lab`, started in a shell, answers."""
    port = free_port()
    with tempfile.TemporaryDirectory() as home:
        env = {"PATH": os.environ["PATH"], "HOME": home, "JUPYTER_RUNTIME_DIR": f"{home}/runtime"}
        argv = [str(Path(sys.executable).with_name("jupyter")), "lab", "--no-browser", "--allow-root", f"--port={port}"]
        with running([*argv, "--ServerApp.token=", f"--ServerApp.root_dir={home}"], env):
            begin = time.perf_counter()
            until(lambda: _answers(Client(f"http://127.0.0.1:{port}"), "/api"), 120)
            return time.perf_counter() - begin


def _gateway(portal: Portal, tenants: Seeded) -> list[Result]:
    made = {"type": "web", "image": "bench", "flavor": "cpu", "command": f"exec python -c '{SERVER}'"}
    web = _application(portal, tenants, "echo", "web", made | {"endpoints": [{"name": "web", "port": 8080}]})
    port = free_port()
    with running([sys.executable, "-c", SERVER], {"HOST": "127.0.0.1", "PORT": str(port)}):
        direct = Client(f"http://127.0.0.1:{port}")
        until(lambda: _answers(direct))
        ways = (direct, web.origin)
        for way in ways:
            one_by_one(WARM_UP, lambda way=way: way.send("GET", "/"))  # type: ignore[misc]
        # Both in turns, so that other load on the machine affects both.
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
    """Seconds from the program's first health check until the gateway routes to it, with `count` other routes."""
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
    """Starts programs that do nothing. Most wait for the only cloud, but each is reported to it."""
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
    # One appcode's page, filled to its limit; some of these applications run.
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
    """Creates an application of the first appcode and waits until it answers."""
    api, code = api_of(portal, tenants), tenants.codes[0]
    path = f"/appcodes/{code}/applications"
    begin = time.perf_counter()
    api.send("POST", path, {"kind": "application", "metadata": {"name": name, "appcode": code}, "spec": spec})
    token = api.json("POST", f"{path}/{name}/access/refresh")["token"]
    host = f"{endpoint}-{name}-{code}.{settings.APPS_DOMAIN}:{portal.port}"
    origin = Client(f"http://127.0.0.1:{portal.port}", {"Host": host, "Authorization": f"token {token}"})
    until(lambda: _answers(origin), 120)
    return Application(api, f"{path}/{name}", origin, time.perf_counter() - begin)


def _answers(at: Client, path: str = "/") -> bool:
    try:
        at.send("GET", path)
    except (OSError, http.client.HTTPException, RuntimeError):
        time.sleep(0.03)  # frequent polls would take processor time from the program that starts
        return False
    return True
