"""Gangs that compete for 13 nodes of 8 GPUs: of two appcodes with a quota each, which borrow from each other, in all classes,
while nodes are drained and return and pods of other software come and go. Every half second somebody looks at all pods.

The floor is the same pods in bare Jobs beside the same disturbances: kube-scheduler binds them one by one, nothing has a quota,
and no Job waits for room for all of its pods.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial

from bench.measures import until
from bench.results import Result
from bench.sizes import size
from bench.web import Client, at_once
from clusters.catalog.models import Flavor
from clusters.clouds.drivers.kubernetes.render import names
from clusters.runs.models import Run
from portal.models import Appcode
from tests.kube.plane import GPU, Object, Plane, Refused, phase

GANGS = size(200, 3)
# GPUs of a gang at most, so that each fits beside a node that is away; GPUs that an appcode owns, and may borrow.
LARGEST, QUOTA, BORROW = size(64, 4), size(40, 4), size(40, 4)
TASKS, GPUS = size(16, 2), (1, 1, 2, 4, 8)
SECONDS = (2, 5)
CLASSES = ("urgent", "normal", "normal", "normal", "spare")
LOOK, MOST_SECONDS, TIMES_FLOOR = 0.5, 1800, 1.15
# Seconds in which a node is away and in which all are there; seconds between pods of other software, and their life.
AWAY, THERE, OTHERS_EVERY, OTHERS_LIFE = 3.0, 4.0, 2.0, 5.0
FLOOR, OTHERS = "bare-gangs", "others"


@dataclass(frozen=True)
class Gang:
    name: str
    appcode: str
    tasks: int
    gpus: int
    seconds: int
    priority_class: str

    @property
    def manifest(self) -> Object:
        flavor = f"competing-{self.gpus}"
        roles: Object = {"master": {"flavor": flavor}}
        if self.tasks > 1:
            roles["worker"] = {"flavor": flavor, "count": self.tasks - 1}
        spec = {
            "image": "bench", "command": "python train.py", "retries": 0, "roles": roles, "priorityClass": self.priority_class,
            "env": {"PLANE_SECONDS": str(self.seconds)},
        }  # fmt: skip
        return {"kind": "cluster", "metadata": {"name": self.name}, "spec": spec}

    @property
    def job(self) -> Object:
        held = {"cpu": "200m", "memory": "128Mi", GPU: str(self.gpus)}
        container = {
            "name": "task", "image": "example/bench:1", "resources": {"requests": held, "limits": held},
            "env": [{"name": "PLANE_SECONDS", "value": str(self.seconds)}],
        }  # fmt: skip
        template = {"spec": {"restartPolicy": "Never", "containers": [container]}}
        count = {"parallelism": self.tasks, "completions": self.tasks, "completionMode": "Indexed"}
        spec = {**count, "backoffLimit": 1000, "template": template}
        return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": self.name}, "spec": spec}


def competing(api: Client, plane: Plane, codes: Sequence[str]) -> list[Result]:
    gangs = list(_gangs(codes))
    for gpus in set(GPUS):
        Flavor.objects.get_or_create(
            name=f"competing-{gpus}", title=f"Competing, {gpus} GPU", cpu_milli=200, memory_mb=128, gpus=gpus
        )
    terms = Appcode.objects.filter(code__in=codes)
    before = {each.pk: (each.gpu_quota, each.gpu_borrow) for each in terms}
    terms.update(gpu_quota=QUOTA, gpu_borrow=BORROW)
    try:
        with _disturbed(plane):
            floor = _bare(plane, gangs)
        look = Look(plane, codes)
        with _disturbed(plane), look.looking():
            seconds = _submit(api, gangs)
    finally:
        for pk, (quota, borrow) in before.items():
            Appcode.objects.filter(pk=pk).update(gpu_quota=quota, gpu_borrow=borrow)
    runs = Run.objects.filter(cluster__name__in=[gang.name for gang in gangs])
    succeeded = runs.filter(phase=Run.Phase.SUCCEEDED).count()
    given_back = sum(runs.values_list("times_given_back", flat=True))
    what = f"{GANGS} competing gangs with {sum(gang.tasks for gang in gangs):,} pods"
    return [
        Result(f"Kubernetes: {what}, POST of the first → end of all", seconds, "s", None),
        Result(f"Kubernetes: {what}, beside bare Jobs of the same pods", seconds, "s", None, floor, times=TIMES_FLOOR),
        Result(f"Kubernetes: {what}: not run to their end", GANGS - succeeded, "", 0),
        Result("Half gangs: seconds before all of a run had nodes, in all", look.starting.seconds, "s"),
        Result("Half gangs: the longest before all of a run had nodes", look.starting.longest, "s", 5),
        Result("Half gangs: the longest after a task lost its node", look.disturbed.longest, "s"),
        Result(f"Looks at which a node held too much, of {look.looks:,}", look.over_node, "", 0),
        Result("Looks at which an appcode held more than its quota and what it may borrow", look.over_limit, "", 0),
        Result("Times that places were given back", given_back, ""),
    ]


def _gangs(codes: Sequence[str]) -> Iterator[Gang]:
    chance = random.Random(31)  # noqa: S311  the same gangs every time
    for number in range(GANGS):
        gpus = chance.choice([each for each in GPUS if each <= LARGEST])
        tasks = min(chance.randint(1, TASKS), LARGEST // gpus)
        code, kind = codes[number % len(codes)], chance.choice(CLASSES)
        yield Gang(f"gang-{number:03}", code, tasks, gpus, chance.randint(*SECONDS), kind)


def _submit(api: Client, gangs: Sequence[Gang]) -> float:
    """Seconds from the first POST until all have ended and nothing is left of them."""
    begin = time.perf_counter()
    at_once(4, [partial(api.send, "POST", f"/appcodes/{gang.appcode}/clusters", gang.manifest) for gang in gangs])
    names_ = [gang.name for gang in gangs]
    until(lambda: not Run.objects.filter(cluster__name__in=names_, gone=False).exists(), MOST_SECONDS, every=0.2)
    return time.perf_counter() - begin


def _bare(plane: Plane, gangs: Sequence[Gang]) -> float:
    plane.make_namespace(FLOOR)
    path = f"/apis/batch/v1/namespaces/{FLOOR}/jobs"
    begin = time.perf_counter()
    at_once(4, [partial(plane.request, "POST", path, gang.job) for gang in gangs])

    def is_over(jobs: dict[str, Object]) -> bool:
        return sum(_is_complete(job) for job in jobs.values()) == len(gangs)

    plane.until(path, is_over, MOST_SECONDS)
    seconds = time.perf_counter() - begin
    plane.request("DELETE", path, propagationPolicy="Background")
    plane.until(f"/api/v1/namespaces/{FLOOR}/pods", lambda pods: not pods)
    return seconds


def _is_complete(job: Object) -> bool:
    return any(each["type"] == "Complete" and each["status"] == "True" for each in job["status"].get("conditions", ()))


@contextmanager
def _disturbed(plane: Plane) -> Iterator[None]:
    """Nodes are drained one after the other and return; pods of other software come and go."""
    if OTHERS not in {each["metadata"]["name"] for each in plane.request("GET", "/api/v1/namespaces")["items"]}:
        plane.make_namespace(OTHERS)
    done = threading.Event()
    several = len(plane.nodes()) > 1
    threads = [threading.Thread(target=_others, args=(plane, done))]
    threads += [threading.Thread(target=_drains, args=(plane, done))] if several else []
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        done.set()
        for thread in threads:
            thread.join()


def _drains(plane: Plane, done: threading.Event) -> None:
    chance, nodes = random.Random(1), sorted(plane.nodes())  # noqa: S311
    while not done.wait(THERE):
        node = chance.choice(nodes)
        plane.request("PATCH", f"/api/v1/nodes/{node}", {"spec": {"unschedulable": True}})
        for pod in plane.request("GET", "/api/v1/pods", fieldSelector=f"spec.nodeName={node}")["items"]:
            if phase(pod) not in ("Succeeded", "Failed"):
                _evict(plane, pod["metadata"])
        done.wait(AWAY)
        plane.request("PATCH", f"/api/v1/nodes/{node}", {"spec": {"unschedulable": None}})


def _evict(plane: Plane, pod: Object) -> None:
    metadata = {"name": pod["name"], "namespace": pod["namespace"]}
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": metadata}
    with suppress(Refused):  # It has ended meanwhile.
        plane.request("POST", f"/api/v1/namespaces/{pod['namespace']}/pods/{pod['name']}/eviction", eviction)


def _others(plane: Plane, done: threading.Event) -> None:
    chance, path, alive = random.Random(2), f"/api/v1/namespaces/{OTHERS}/pods", list[tuple[float, str]]()  # noqa: S311
    while not done.wait(OTHERS_EVERY):
        held = {"cpu": "1", "memory": "1Gi", GPU: str(chance.randint(1, 4))}
        container = {"name": "main", "image": "example/none:1", "resources": {"requests": held, "limits": held}}
        body = {"metadata": {"generateName": "other-"}, "spec": {"containers": [container], "restartPolicy": "Never"}}
        alive.append((time.monotonic(), plane.request("POST", path, body)["metadata"]["name"]))
        while alive and alive[0][0] < time.monotonic() - OTHERS_LIFE:
            _delete(plane, f"{path}/{alive.pop(0)[1]}")
    for _, name in alive:
        _delete(plane, f"{path}/{name}")


def _delete(plane: Plane, path: str) -> None:
    with suppress(Refused):  # It was evicted.
        plane.request("DELETE", path, gracePeriodSeconds="0")


class Half:
    """For how long runs had nodes for some of their tasks only."""

    def __init__(self) -> None:
        self.seconds = self.longest = 0.0
        self._since: dict[int, float] = {}

    def see(self, runs: set[int], now: float, passed: float) -> None:
        self.seconds += len(runs) * passed
        self._since = {run: self._since.get(run, now - passed) for run in runs}
        self.longest = max([self.longest, *(now - since for since in self._since.values())])


class Look:
    """Looks at all pods twice a second."""

    def __init__(self, plane: Plane, codes: Sequence[str]) -> None:
        self._plane, self._codes = plane, codes
        self.starting, self.disturbed = Half(), Half()
        self.looks = self.over_node = self.over_limit = 0
        self._succeeded: dict[int, set[str]] = {}
        self._gpus = {name: int(node["status"]["allocatable"].get(GPU, 0)) for name, node in plane.nodes().items()}

    @contextmanager
    def looking(self) -> Iterator[None]:
        done = threading.Event()
        thread = threading.Thread(target=self._until, args=(done,))
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()

    def _until(self, done: threading.Event) -> None:
        from django.db import connections

        before = time.monotonic()
        while not done.wait(LOOK):
            pods = self._plane.request("GET", "/api/v1/pods")["items"]
            now = time.monotonic()
            self._look(pods, now, now - before)
            self.looks, before = self.looks + 1, now
        connections.close_all()

    def _look(self, pods: Sequence[Object], now: float, passed: float) -> None:
        by_node, bound = Counter[str](), Counter[int]()
        by_run = Counter[int]()
        for pod in pods:
            if not pod["spec"].get("nodeName") or names.RUN_ID not in pod["metadata"].get("labels", {}):
                self._count_other(pod, by_node)
                continue
            run, gpus = int(pod["metadata"]["labels"][names.RUN_ID]), _gpus(pod)
            if phase(pod) == "Succeeded":
                self._succeeded.setdefault(run, set()).add(pod["metadata"]["name"])
            elif phase(pod) != "Failed":
                by_node[pod["spec"]["nodeName"]] += gpus
                by_run[run] += gpus
                bound[run] += "deletionTimestamp" not in pod["metadata"]
        self.over_node += any(held > self._gpus.get(node, 0) for node, held in by_node.items())
        living = Run.objects.filter(pk__in=by_run).select_related("cluster__appcode")
        columns = (
            "spec",
            "priority_class",
            "roles",
            "verdict",
            "desired",
            "given_back_at",
            "whole_at",
            "cluster__appcode__code",
        )
        runs = {run.pk: run for run in living.only(*columns)}
        held = Counter[str]()
        for run, gpus in by_run.items():
            if runs[run].priority_class != "spare":
                held[runs[run].cluster.appcode.code] += gpus
        self.over_limit += any(gpus > QUOTA + BORROW for gpus in held.values())
        half = [
            runs[run]
            for run, count in bound.items()
            if count
            and not (runs[run].verdict or runs[run].given_back_at)
            and count + len(self._succeeded.get(run, ())) < sum(role["count"] for role in runs[run].roles.values())
        ]
        self.starting.see({run.pk for run in half if run.whole_at is None}, now, passed)
        self.disturbed.see({run.pk for run in half if run.whole_at is not None}, now, passed)

    def _count_other(self, pod: Object, by_node: Counter[str]) -> None:
        if (node := pod["spec"].get("nodeName")) and phase(pod) not in ("Succeeded", "Failed"):
            by_node[node] += _gpus(pod)


def _gpus(pod: Object) -> int:
    return sum(int(each.get("resources", {}).get("limits", {}).get(GPU, 0)) for each in pod["spec"]["containers"])
