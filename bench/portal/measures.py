"""The measurements, quiet ones first. Each takes the running portal and its tenants, and returns results."""

from __future__ import annotations

import itertools
import os
import select
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from unittest.mock import patch
from urllib.parse import quote, urlsplit

import psutil
from django.conf import settings
from django.db import connection
from django.test import Client as Browser
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from bench import floors
from bench import idle as idling
from bench.results import Result, quantile
from bench.seed import MEMBER_OF, ROLES, Seeded
from bench.sizes import is_smallest, settling, size
from bench.web import Client, one_by_one, steadily
from clusters.catalog.models import Flavor, Image
from clusters.clouds.models import CloudState
from clusters.cluster.actions import delete_cluster, disable
from clusters.runs.models import Cluster, Run
from clusters.runs.reconcile import reconcile, unsettled
from portal.models import User
from tests.running import Portal

MB = 10**6
IDLE_SECONDS = size(60, 1)
# No ratio here: most of the servers' work is for the idle portal's requests, so fewer requests would make the ratio worse.
IDLE_PERCENT = 2.0
# Requests that are not measured, before those that are.
WARM_UP = size(50, 1)
PAGES, STARTS, ROUNDS = size(300, 2), size(10, 1), size(7, 1)
POSTS, WARM_POSTS, POSTS_PER_SECOND = size(400, 2), size(20, 1), 20
GPUS = 8
# What people type into ⌘K, in turn.
TYPED = itertools.cycle(("train", "run train-1", "failed", "stop train-2", "runs with loss < 0.1", "gpu quota"))
POLL_SECONDS = 0.2 if is_smallest() else 0.0


def idle(portal: Portal, tenants: Seeded) -> list[Result]:
    """memory and processor time of the idle portal"""
    assert portal.process is not None
    # Wait until the work that the start caused has settled.
    time.sleep(settling(15))
    whole, servers = idling.watch(portal.process.pid, IDLE_SECONDS)
    return [
        Result("Idle: memory of all processes, shared pages counted once", whole.pss / MB, "MB", 1200, servers.pss / MB),
        Result("Idle: the same, shared pages counted in each process", whole.rss / MB, "MB", None, servers.rss / MB),
        Result(
            "Idle: processor time", whole.cpu / IDLE_SECONDS * 100, "% of a core", IDLE_PERCENT,
            servers.cpu / IDLE_SECONDS * 100,
        ),
    ]  # fmt: skip


def listing(portal: Portal, tenants: Seeded) -> list[Result]:
    """the list page and what ⌘K finds, with 10,000 clusters of 500 appcodes"""
    found = []
    with floors.bare_server() as bare:
        one_by_one(WARM_UP, lambda: bare.send("GET", "/"))
        floor = quantile(one_by_one(PAGES, lambda: bare.send("GET", "/")), 0.99) * 1000
    for user, who in ((tenants.root, "all of them"), (tenants.member, f"{MEMBER_OF} appcodes of them")):
        browser = signed_in(user)
        page = pages(portal, browser)
        text = page.send("GET", "/").decode()
        assert "train-" in text, "the page lists no clusters"
        one_by_one(WARM_UP, lambda page=page: page.send("GET", "/"))  # type: ignore[misc]
        times = one_by_one(PAGES, lambda page=page: page.send("GET", "/"))  # type: ignore[misc]
        browser.get("/")  # a process reads the flavors' titles once
        with CaptureQueriesContext(connection) as queries:
            assert browser.get("/").status_code == 200
        found += [
            Result(f"List page for one who sees {who}: p99", quantile(times, 0.99) * 1000, "ms", 50, floor),
            Result(f"List page for one who sees {who}: median", quantile(times, 0.5) * 1000, "ms"),
            Result(f"List page for one who sees {who}: queries", len(queries), "", 7),
        ]
        times = one_by_one(PAGES, lambda page=page: page.send("GET", f"/search?q={quote(next(TYPED))}"))  # type: ignore[misc]
        found.append(Result(f"⌘K for one who sees {who}: p99", quantile(times, 0.99) * 1000, "ms", 100, floor))
        packed = pages(portal, browser, {"Accept-Encoding": "gzip"})
        found.append(
            Result(
                f"Poll of a full list, for one who sees {who}",
                len(packed.send("GET", "/home/rows")) / 1000,
                "kB",
                10,
            )
        )
    return found


def newcomer(portal: Portal, tenants: Seeded) -> list[Result]:
    """the form of a new cluster, and the first card until it has a chart"""
    browser = signed_in(tenants.member)
    page = pages(portal, browser)
    one_by_one(WARM_UP, lambda: page.send("GET", "/clusters/new"))
    times = one_by_one(PAGES, lambda: page.send("GET", "/clusters/new"))
    Image.objects.create(
        name="tensorflow-bench", title="TensorFlow", environment=sys.prefix, program=str(settings.BASE_DIR / "examples")
    )
    # The flavors of the other measurements are too small for TensorFlow.
    Flavor.objects.update(enabled=False)
    Flavor.objects.create(name="first", title="First", cpu_milli=1000, memory_mb=1536, gpus=1)
    begin = time.perf_counter()
    answer = browser.post("/clusters/start", {"start": "hello-gpu", "appcode": tenants.codes[0]})
    assert answer.status_code == 302, answer.content.decode()
    run = Run.objects.get(cluster__name="hello-gpu")
    until(lambda: Run.objects.get(pk=run.pk).is_terminal, seconds=300)
    assert Run.objects.get(pk=run.pk).phase == Run.Phase.SUCCEEDED
    until(lambda: b'class="panel chart"' in browser.get(f"{answer['Location']}/metrics/charts").content)
    took = time.perf_counter() - begin
    Flavor.objects.update(enabled=True)
    return [
        Result("New cluster, the form with its cards: p99", quantile(times, 0.99) * 1000, "ms", 300),
        Result("New cluster, the form with its cards: median", quantile(times, 0.5) * 1000, "ms"),
        Result("The card “Hello GPU” → Succeeded, with a chart", took, "s", 45),
    ]


def starting(portal: Portal, tenants: Seeded) -> list[Result]:
    """from the request to running processes, and from Disable to free GPUs"""
    api = api_of(portal, tenants)
    numbers = itertools.count()
    floors.processes(1)
    one = [floors.processes(1)[0] for _ in range(STARTS)]
    six = [floors.processes(sum(ROLES.values())) for _ in range(ROUNDS)]
    alone = [_round(portal, api, tenants, f"one-{next(numbers)}", {"master": 1}) for _ in range(STARTS)]
    together = [_round(portal, api, tenants, f"six-{next(numbers)}", ROLES) for _ in range(ROUNDS)]
    return [
        Result(
            f"POST → first task's process started, worst of {STARTS}", max(first for first, _, _ in alone), "s", 1,
            max(one),
        ),
        Result(
            f"POST → Running for 1 master + 1 ps + 4 workers, worst of {ROUNDS}", max(run for _, run, _ in together),
            "s", 2, max(started for started, _ in six),
        ),
        Result(
            f"Disable → its 6 tasks gone and GPUs free, worst of {ROUNDS}", max(gone for _, _, gone in together), "s", 2,
            max(ended for _, ended in six),
        ),
    ]  # fmt: skip


def posting(portal: Portal, tenants: Seeded) -> list[Result]:
    """clusters posted at a steady rate, until long after all GPUs are taken"""
    api = api_of(portal, tenants)
    codes, names = itertools.cycle(tenants.codes), [f"post-{n}" for n in range(WARM_POSTS + POSTS)]
    places = {name: f"/appcodes/{next(codes)}/clusters" for name in names}

    def job(name: str) -> Callable[[], object]:
        return lambda: api.send("POST", places[name], manifest(name, {"master": 1}, "exec sleep 600"))

    def end(name: str) -> Callable[[], object]:
        return lambda: api.send("POST", f"{places[name]}/{name}/disable", {})

    with floors.bare_server() as bare:
        steadily(POSTS_PER_SECOND, [lambda: bare.send("GET", "/")] * WARM_UP)
        before = idling.cpu(os.getpid(), "bench.floors:app")
        floor = steadily(POSTS_PER_SECOND, [lambda: bare.send("GET", "/")] * POSTS)
        bare_cpu = idling.cpu(os.getpid(), "bench.floors:app") - before
    steadily(POSTS_PER_SECOND, [job(name) for name in names[:WARM_POSTS]])
    until(_all_told, 300, every=0.5)
    used, opened = _used(portal), _sessions()
    times = steadily(POSTS_PER_SECOND, [job(name) for name in names[WARM_POSTS:]])
    until(_all_told, 300, every=0.5)
    # Processor time does not depend on how busy the machine is with other programs.
    spent = {name: (after - used[name]) / POSTS * 1000 for name, after in _used(portal).items()}
    opened = _sessions() - opened
    # So that no cluster of this part runs during the next part.
    steadily(4 * POSTS_PER_SECOND, [end(name) for name in names])
    until(lambda: not Run.objects.filter(gone=False).exists(), 120, every=0.5)
    return [
        Result(
            f"POST of a cluster accepted at {POSTS_PER_SECOND} a second: p99", quantile(times, 0.99) * 1000, "ms", 150,
            quantile(floor, 0.99) * 1000,
        ),
        Result(
            f"POST of a cluster accepted at {POSTS_PER_SECOND} a second: median", quantile(times, 0.5) * 1000, "ms",
            None, quantile(floor, 0.5) * 1000,
        ),
        Result("POST of a cluster: processor time of the web server", spent["web"], "ms", None, bare_cpu / POSTS * 1000),
        Result("POST of a cluster: processor time of the worker, until its cloud was told", spent["worker"], "ms"),
        Result("POST of a cluster: processor time of PostgreSQL", spent["postgres"], "ms"),
        Result("POST of a cluster: sessions of PostgreSQL opened by all programs", opened / POSTS, "", 0.1),
        *_statements(tenants),
    ]  # fmt: skip


def _all_told() -> bool:
    """Whether the worker has handled every posted cluster: its cloud knows it, or the quota holds it back."""
    return not Run.objects.filter(unsettled(timezone.now())).exists()


def _used(portal: Portal) -> dict[str, float]:
    assert portal.process is not None
    words = {"web": "portal.wsgi", "worker": "celery", "postgres": "postgres"}
    return {name: idling.cpu(portal.process.pid, word) for name, word in words.items()}


def _sessions() -> int:
    """Sessions opened since the server started."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT sessions FROM pg_stat_database WHERE datname = current_database()")
        return int(cursor.fetchone()[0])


def _statements(tenants: Seeded) -> list[Result]:
    """Counts the statements of one cluster in this process: the same code and the same database as the portal's."""
    browser, path = _browser(), f"/api/v1/appcodes/{tenants.codes[0]}/clusters"
    headers = {"Authorization": f"Bearer {tenants.token}"}

    def post(name: str) -> None:
        body = manifest(name, {"master": 1}, "exec sleep 600")
        answer = browser.post(path, body, content_type="application/json", headers=headers)
        assert answer.status_code == 201, answer.content

    def clear() -> None:
        for cluster in Cluster.objects.filter(name__startswith="count-"):
            delete_cluster(cluster, acting_user=tenants.root)
        until(lambda: not Run.objects.filter(gone=False).exists(), 120, every=0.5)

    # Once-per-process and once-per-minute work. This cluster ends first: beside it, the next one would not be admitted.
    post("count-0")
    clear()
    with CaptureQueriesContext(connection) as posted, patch("clusters.cluster.actions.wakeups.wake"):
        post("count-1")
    run = Run.objects.get(current_of__name="count-1")
    with CaptureQueriesContext(connection) as told:
        reconcile(run.pk)
    with CaptureQueriesContext(connection) as ended:
        disable(run.cluster, acting_user=tenants.root)
    clear()
    return [
        Result("POST of a cluster: statements of the web server", _count(posted), "", 10),
        Result("The worker's part of its start: statements", _count(told), "", 15),
        Result("Disable: statements of the web server", _count(ended), "", 10),
    ]


def _count(queries: CaptureQueriesContext) -> int:
    """Counts statements without BEGIN and COMMIT."""
    return sum(query["sql"] not in ("BEGIN", "COMMIT") for query in queries)


PARTS = (idle, listing, newcomer, starting, posting)


def api_of(portal: Portal, tenants: Seeded) -> Client:
    return Client(f"{portal.url}/api/v1", {"Authorization": f"Bearer {tenants.token}"})


def _browser() -> Browser:
    return Browser(HTTP_HOST=urlsplit(settings.PORTAL_ORIGIN).netloc)


def signed_in(user: User) -> Browser:
    browser = _browser()
    browser.force_login(user, "allauth.account.auth_backends.AuthenticationBackend")
    return browser


def pages(portal: Portal, browser: Browser, headers: Mapping[str, str] | None = None) -> Client:
    """Requests pages of the portal itself, with the session of `browser`."""
    return Client(portal.url, {"Cookie": f"sessionid={browser.cookies['sessionid'].value}", **(headers or {})})


def manifest(
    name: str, roles: Mapping[str, int], command: str, *, gpus: bool = True, **more: object
) -> dict[str, object]:
    """A cluster of small tasks, with a GPU each if `gpus`, but none for parameter servers."""
    flavors = {
        role: {"flavor": "gpu" if gpus and role != "ps" else "cpu", "count": count} for role, count in roles.items()
    }
    spec = {"image": "bench", "command": command, "retries": 0, "roles": flavors, **more}
    return {"kind": "cluster", "metadata": {"name": name}, "spec": spec}


def _round(
    portal: Portal, api: Client, tenants: Seeded, name: str, roles: dict[str, int]
) -> tuple[float, float, float]:
    """Runs one cluster from its POST to its end. Returns the seconds to its first process, to Running, and from Disable
    to free GPUs. Every task's first command writes into its log, a file of this machine, because the task's network
    does not reach this process."""
    path = f"/appcodes/{tenants.codes[0]}/clusters"
    with ExitStack() as handles:
        begin = time.perf_counter()
        api.send("POST", path, manifest(name, roles, "echo; exec sleep 600"))
        run = Run.objects.get(cluster__name=name)
        tasks = portal.data / "cloud" / "runs" / str(run.pk) / "tasks"
        until(lambda: any(log.stat().st_size for log in tasks.glob("*/log")), every=0.002)
        first = time.perf_counter() - begin
        until(lambda: api.json("GET", f"{path}/{name}")["status"]["phase"] == "Running")
        running = time.perf_counter() - begin
        found = _tasks_of(run)
        assert len(found) == sum(roles.values()), f"{len(found)} processes of {name} instead of {sum(roles.values())}"
        watched = [handles.enter_context(os.fdopen(os.pidfd_open(pid))) for pid in found]
        begin = time.perf_counter()
        api.send("POST", f"{path}/{name}/disable", {})
        for handle in watched:
            assert select.select([handle], [], [], 30)[0], f"a process of {name} lives on"
        until(lambda: sum(node["gpus_free"] for node in CloudState.objects.get().capacity["nodes"]) == GPUS)
        gone = time.perf_counter() - begin
    until(lambda: Run.objects.get(pk=run.pk).is_terminal)
    api.send("DELETE", f"{path}/{name}")
    return first, running, gone


def _tasks_of(run: Run) -> list[int]:
    """The run's processes on this machine, found by the cluster's name in their environment. All are `sleep` by now."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.name() == "sleep" and process.environ().get("PORTAL_CLUSTER") == run.cluster.name:
                found.append(process.pid)
        except psutil.Error:
            continue
    return found


def until(condition: Callable[[], bool], seconds: float = 30, every: float = 0.02) -> None:
    """Returns when `condition` is true. Polls every 20 ms by default, which is the error of measurements that use it. In the
    smallest size it polls five times a second, because polls take more processor time than the rest."""
    every = max(every, POLL_SECONDS)
    end = time.perf_counter() + seconds
    while not condition():
        if time.perf_counter() > end:
            raise RuntimeError("it did not happen in time")
        time.sleep(every)
