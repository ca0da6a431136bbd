"""The portal on Kubernetes, compared with `kubectl`, on a real control plane with simulated nodes (tests/kube/plane.py).

The path is the product's: a request passes gateway, database, worker and API server, whose watch leads back through the
controller to the database. The API server counts calls in its audit log. kwok simulates nodes and containers, at the
same cost for the portal and for `kubectl`.
"""

from __future__ import annotations

import os
import random
import re
import select
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import psutil
import psycopg2
from django.core.management import call_command
from django.db import connection

from bench.admission import competing as gangs
from bench.kubernetes.kubectl import MUTATING, Floor, pod_bytes
from bench.portal import logs, sweeping
from bench.portal.measures import MB, api_of, manifest, until
from bench.results import Result, quantile
from bench.seed import LINES, Seeded
from bench.sizes import settling, size
from bench.web import Client, steadily
from clusters.clouds.drivers.base import Plan
from clusters.clouds.drivers.kubernetes.api import client as kubernetes
from clusters.clouds.drivers.kubernetes.api.client import path_of
from clusters.clouds.drivers.kubernetes.render import names
from clusters.clouds.models import CloudState
from clusters.runs.models import Run
from clusters.runs.reconcile import plan_of
from clusters.runs.status.follower import tune
from portal.models import Appcode
from tests.kube.following import PORTAL_USER, portal_kubeconfig
from tests.kube.kubelet import played, stamped
from tests.kube.plane import Plane
from tests.running import Portal

CLOUD = "bench"
COMMAND = "python train.py --epochs 20"
# The seeded business lines that run on Kubernetes. The others run on this machine.
PLACED = range(LINES // 2, LINES)
LAUNCHED = {"master": 1, "ps": 1, "worker": size(100, 1)}
NODES = size(26, 1)
ROUNDS, WARM_UP, TIMES_FLOOR, WRITES = size(7, 1), size(2, 0), 1.15, 10
# A pod's manifest includes its confinement and its output paths. Its size does not depend on the number of tasks.
POD_BYTES = 12_000

PODS, PODS_A_RUN, PODS_A_NODE = size(10_000, 4), size(100, 2), 110
QUIET_SECONDS = size(60, 1)
EVENTS, EVENTS_PER_SECOND = size(6000, 2), 200
MARK = "bench-event-"


@contextmanager
def placed(folder: Path, portal: Portal) -> Iterator[Plane]:
    """Yields a plane that is registered in the portal, with enough nodes for LAUNCHED and some business lines placed on it."""
    # The floors watch and release pods in this process, so give its interpreter the controller's settings.
    tune()
    _forward(portal)
    plane = Plane(folder, audited=PORTAL_USER)
    plane.start()
    try:
        plane.add_nodes(NODES)
        lines = [f"--business-line=bench.line-{n}" for n in PLACED]
        config = f"--kubeconfig={portal_kubeconfig(plane)}"
        call_command("register_kubernetes", CLOUD, config, f"--set=portal={CLOUD}", *lines)
        Appcode.objects.filter(org_node__namespace__in=_namespaces()).update(gpu_quota=PODS)
        until(
            lambda: CloudState.objects.filter(name=CLOUD, **{f"capacity__nodes__{NODES - 1}__isnull": False}).exists()
        )
        # The portal keeps the log of each task that ends. A short log keeps disk time out of the measurement.
        with played(plane, stamped(10, 100)):
            yield plane
    finally:
        plane.stop()


def _forward(portal: Portal) -> None:
    """Has worker and controller, which step back for tasks on their machine, compete with the control plane as its own programs
    do: only here are both on one machine."""
    for pid, line in portal.programs().items():
        if line.endswith("manage.py controller") or "celery" in line:
            with suppress(OSError):  # not allowed to everyone
                for thread in Path(f"/proc/{pid}/task").iterdir():
                    os.setpriority(os.PRIO_PROCESS, int(thread.name), 0)
                Path(f"/proc/{pid}/autogroup").write_text("0")


def launching(portal: Portal, tenants: Seeded, plane: Plane) -> list[Result]:
    """on Kubernetes: 1 master + 1 ps + 100 workers, beside kubectl"""
    code = _codes()[0]
    plan = _launch(api_of(portal, tenants), plane, code, "warm").plan
    for number, is_plain in ((0, False), (1, True))[:WARM_UP]:
        Floor(plane, plan, number, plain=is_plain).apply()
        Floor(plane, plan, number, plain=is_plain).delete()
    kinds: tuple[dict[str, bool], ...] = ({}, {"held": False}, {"plain": True})
    floors: dict[str, list[tuple[float, float]]] = {str(kind): [] for kind in kinds}
    ours, plain_bytes = [], 0
    for n in range(ROUNDS):
        for m, kind in enumerate(kinds):
            floor = Floor(plane, plan, len(kinds) * n + m + 2, **kind)
            applied = floor.apply()
            _rest(plane)
            floors[str(kind)].append((applied, floor.delete()))
            plain_bytes = floor.pod_bytes
            _rest(plane)
        # The gateway may have closed the kept connection while the floors ran.
        ours.append(_launch(api_of(portal, tenants), plane, code, f"launch-{n}"))
        _rest(plane)
    same, bare, plain = ([statistics.median(each[n] for each in floors[str(kind)]) for n in (0, 1)] for kind in kinds)
    up, down = statistics.median(each.running for each in ours), statistics.median(each.gone for each in ours)
    size = f"{sum(LAUNCHED.values())} pods"
    return [
        Result(f"Kubernetes: POST → all {size} Running, median of {ROUNDS}", up, "s", floor=same[0], times=TIMES_FLOOR),
        Result("Kubernetes: the same, beside as many plain pods", up, "s", floor=plain[0]),
        Result(
            f"Kubernetes: Disable → all {size} gone, median of {ROUNDS}", down, "s", floor=same[1], times=TIMES_FLOOR
        ),
        Result(
            f"Kubernetes: deleting {size} by kubectl without finalizers, median of {ROUNDS}",
            bare[1],
            "s",
            floor=same[1],
        ),
        Result(
            "Kubernetes: calls of a launch that change something, most", max(each.writes for each in ours), "", WRITES
        ),
        Result("Kubernetes: the largest pod, beside a plain one", ours[-1].pod_bytes, "bytes", POD_BYTES, plain_bytes),
    ]


@dataclass(frozen=True)
class Launch:
    """Seconds until all pods run and from Disable to gone (as in the database), mutating calls, size of the largest pod."""

    running: float
    gone: float
    writes: int
    pod_bytes: int
    plan: Plan


def _launch(api: Client, plane: Plane, code: str, name: str) -> Launch:
    path, count = f"/appcodes/{code}/clusters", sum(LAUNCHED.values())
    calls = len(plane.calls_of_audited())
    begin = time.perf_counter()
    api.send("POST", path, manifest(name, LAUNCHED, COMMAND))
    run = Run.objects.select_related("cluster__appcode__org_node").get(cluster__name=name)
    until(lambda: _running(run.pk) == count, 120)
    running = time.perf_counter() - begin
    _rest(plane)
    writes = [call["verb"] for call in plane.calls_of_audited()[calls:] if call["verb"] in MUTATING]
    plan = plan_of(run)
    asked = kubernetes.Client.connect(str(plane.kubeconfig)), path_of("Pod", run.namespace)
    largest = pod_bytes(*asked, names.selector(portal=CLOUD, run_id=run.pk))
    begin = time.perf_counter()
    api.send("POST", f"{path}/{name}/disable", {})
    until(lambda: Run.objects.filter(pk=run.pk, gone=True).exists(), 120)
    gone = time.perf_counter() - begin
    api.send("DELETE", f"{path}/{name}")
    return Launch(running, gone, len(writes), largest, plan)


def following(portal: Portal, tenants: Seeded, plane: Plane) -> list[Result]:
    """on Kubernetes: the status of 10,000 pods"""
    before = _controller(portal).memory_info().rss
    begin = time.perf_counter()
    _fill(api_of(portal, tenants), plane)
    filled = time.perf_counter() - begin
    _rest(plane, 15)
    lists, busy = _quiet(portal, plane)
    lags, floor = _lags(plane)
    relist, peak = _relist(portal, plane)
    size = f"{PODS:,} pods"
    return [
        Result(f"Kubernetes: POST of {PODS // PODS_A_RUN} clusters → all {size} Running", filled, "s"),
        Result(f"Kubernetes: lists of {size} in {QUIET_SECONDS} s of a healthy watch", lists, "", 0),
        Result("Kubernetes: processor time of the controller meanwhile", busy, "% of a core"),
        Result(
            f"Kubernetes: pod's change → row, {EVENTS_PER_SECOND} a second of {size}: p99", quantile(lags, 0.99), "s", 1,
            quantile(floor, 0.99),
        ),
        Result(
            f"Kubernetes: pod's change → row, {EVENTS_PER_SECOND} a second of {size}: median", quantile(lags, 0.5), "s",
            None, quantile(floor, 0.5),
        ),
        Result(f"Kubernetes: {size} listed anew by a new controller", relist, "s", 5),
        Result("Kubernetes: memory that its largest moment took", (peak - before) / MB, "MB", 300),
    ]  # fmt: skip


def tailing(portal: Portal, tenants: Seeded, plane: Plane) -> list[Result]:
    """on Kubernetes: the logs of 100 tasks"""
    return logs.tailing(portal, tenants, plane, _codes()[0])


def competing(portal: Portal, tenants: Seeded, plane: Plane) -> list[Result]:
    """on Kubernetes: gangs of two appcodes that compete, beside bare Jobs of the same pods"""
    return gangs.competing(api_of(portal, tenants), portal, plane, _codes()[:2])


def trials(portal: Portal, tenants: Seeded, plane: Plane) -> list[Result]:
    """on Kubernetes: 1,000 trials of a sweep, 100 at once, in one run and as clusters, beside one Job of as many pods"""
    return sweeping.trials(portal, tenants, plane, _codes()[0])


PARTS = (launching, competing, trials, tailing, following)


def _fill(api: Client, plane: Plane) -> None:
    """Starts PODS pods through the portal. Successive runs belong to different appcodes."""
    plane.add_nodes(-(-PODS // PODS_A_NODE) + size(2, 0), gpus=PODS_A_NODE)
    codes, runs = _codes(), PODS // PODS_A_RUN
    for n in range(runs):
        body = manifest(f"fill-{n:03}", {"master": 1, "worker": PODS_A_RUN - 1}, COMMAND)
        api.send("POST", f"/appcodes/{codes[n % len(codes)]}/clusters", body)
    until(lambda: _running() == PODS, 1200, every=1.0)


def _quiet(portal: Portal, plane: Plane) -> tuple[int, float]:
    """Returns the number of lists within QUIET_SECONDS, and the controller's processor time in percent of a core."""
    calls, process = len(plane.calls_of_audited()), _controller(portal)
    before = process.cpu_times()
    time.sleep(QUIET_SECONDS)
    after = process.cpu_times()
    # Lists with limit=1 do not count: they only read the position (resourceVersion) of a list.
    asked = [call["requestURI"] for call in plane.calls_of_audited()[calls:] if call["verb"] == "list"]
    lists = [uri for uri in asked if not re.search(r"[?&]limit=1(&|$)", uri)]
    used = after.user + after.system - before.user - before.system
    return len(lists), used / QUIET_SECONDS * 100


def _lags(plane: Plane) -> tuple[list[float], list[float]]:
    """Returns the seconds from sending a pod's changed status to the API server until its row has it; and, for the same
    changes, until a watch that does nothing else receives them."""
    chance = random.Random(4)  # noqa: S311  the same pods every time
    api = kubernetes.Client.connect(str(plane.kubeconfig))
    pods = [
        (item["metadata"]["namespace"], item["metadata"]["name"])
        for page in api.pages(path_of("Pod"), labelSelector=f"gpu-cloud/portal={CLOUD}") for item in page["items"]
    ]  # fmt: skip
    assert len(pods) == PODS, f"{len(pods)} pods"
    sent: dict[str, float] = {}
    with Rows() as rows, Watch(kubernetes.Client.connect(str(plane.kubeconfig))) as watch:
        # Each pod changes only once: if two changes of a pod arrive together, only the later one is written to the database.
        def change(number: int, place: tuple[str, str]) -> Callable[[], object]:
            def send() -> None:
                mark = f"{MARK}{number}"
                waiting = {"reason": "RunContainerError", "message": mark}
                status = {"containerStatuses": [{"name": "task", "state": {"running": None, "waiting": waiting}}]}
                sent[mark] = time.perf_counter()
                api.patch(f"{path_of('Pod', *place)}/status", {"status": status}, kubernetes.STRATEGIC)

            return send

        steadily(EVENTS_PER_SECOND, [change(n, place) for n, place in enumerate(chance.sample(pods, EVENTS))])
        until(lambda: len(rows.seen) == EVENTS and len(watch.seen) == EVENTS, 60)
    return tuple([each.seen[mark] - at for mark, at in sent.items()] for each in (rows, watch))  # type: ignore[return-value]


class Heard:
    """A thread that notes when each mark first arrives."""

    def __init__(self) -> None:
        self.seen: dict[str, float] = {}
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._listen, daemon=True)

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._thread.join()

    def _listen(self) -> None:
        raise NotImplementedError


class Rows(Heard):
    """PostgreSQL notifies about changed rows, at their commit."""

    def __enter__(self) -> Rows:
        self._connection = psycopg2.connect(os.environ["DATABASE_URL"])
        self._connection.autocommit = True
        with self._connection.cursor() as cursor:
            cursor.execute(
                "CREATE FUNCTION bench_tell() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
                f"PERFORM pg_notify('bench', substring(NEW.message FROM '{MARK}[0-9]+')); RETURN NULL; END $$;"
                "CREATE TRIGGER bench_tell AFTER UPDATE ON clusters_task FOR EACH ROW "
                f"WHEN (NEW.message LIKE '%{MARK}%') EXECUTE FUNCTION bench_tell(); LISTEN bench"
            )
        self._thread.start()
        return self

    def _listen(self) -> None:
        while not self._stopped.is_set():
            if select.select([self._connection], [], [], 0.5)[0]:
                self._connection.poll()
                now = time.perf_counter()
                for told in self._connection.notifies:
                    self.seen.setdefault(told.payload, now)
                self._connection.notifies.clear()
        with self._connection.cursor() as cursor:
            cursor.execute("DROP FUNCTION bench_tell CASCADE")
        self._connection.close()


class Watch(Heard):
    """The floor: a watch that only decodes events and searches them for marks."""

    def __init__(self, api: kubernetes.Client) -> None:
        super().__init__()
        self._api = api
        self._version = api.get(path_of("Pod"), limit=1)["metadata"]["resourceVersion"]

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def _listen(self) -> None:
        while not self._stopped.is_set():
            answer = self._api.watch(path_of("Pod"), self._version, labelSelector=f"gpu-cloud/portal={CLOUD}")
            for event in kubernetes.events(answer):
                self._version = event["object"]["metadata"]["resourceVersion"]
                for status in event["object"].get("status", {}).get("containerStatuses") or []:
                    mark = status["state"].get("waiting", {}).get("message", "")
                    if mark.startswith(MARK):
                        self.seen.setdefault(mark, time.perf_counter())
                if self._stopped.is_set():
                    break
            answer.close()


def _relist(portal: Portal, plane: Plane) -> tuple[float, int]:
    """Kills the controller. Returns the seconds from the first list of its successor until everything is in the
    database, and the successor's peak memory until then."""
    calls = len(plane.calls_of_audited())
    old = _controller(portal)
    killed = datetime.now(UTC)
    old.kill()
    until(lambda: CloudState.objects.filter(name=CLOUD, heard_at__gt=killed).exists(), 120)
    done = time.time()
    peak = Path(f"/proc/{_controller(portal).pid}/status").read_text().partition("VmHWM:")[2].split()[0]
    begins = [each["requestReceivedTimestamp"] for each in plane.calls_of_audited()[calls:] if each["verb"] == "list"]
    return done - datetime.fromisoformat(min(begins)).timestamp(), int(peak) * 1024


def _controller(portal: Portal) -> psutil.Process:
    return psutil.Process(next(pid for pid, line in portal.programs().items() if line.endswith("manage.py controller")))


def _running(run_id: int | None = None) -> int:
    """Counts task rows that run on Kubernetes, of one run or of all."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(*) FROM clusters_task t JOIN clusters_run r ON r.id = t.run_id"
            " WHERE t.phase = 'Running' AND r.cloud = %s AND (%s IS NULL OR r.id = %s)",
            [CLOUD, run_id, run_id],
        )
        return int(cursor.fetchone()[0])


def _rest(plane: Plane, seconds: float = 1.0) -> None:
    """Waits for the after-effects of a change: events, endpoints, leases."""
    time.sleep(settling(seconds))
    plane.check()


def _codes() -> list[str]:
    """The appcodes that are placed on Kubernetes."""
    return list(
        Appcode.objects.filter(org_node__namespace__in=_namespaces()).values_list("code", flat=True).order_by("code")
    )


def _namespaces() -> list[str]:
    return [f"line-{n}" for n in PLACED]
