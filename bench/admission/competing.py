"""Gangs that compete for nodes of 8 GPUs: of two appcodes with a quota each, which borrow from each other, in all classes,
while nodes are drained and return and pods of other software come and go.

The floor is the same pods, in bare Jobs with the same programs: a loop makes them in the order in which the portal gave the
gangs their places, as many at a time as there are GPUs, and deletes each Job when it is complete. kube-scheduler binds their pods
one by one, and no Job waits for room for all of its pods. A watch sees the pods of both, and every change of them is judged.

Simulated are nodes and containers (tests/kube/stages.py): a program is a number of seconds. Scheduler, controllers and API server
are the real ones, and so is all of the portal.
"""

from __future__ import annotations

import os
import random
import statistics
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial

import psutil

from bench import idle
from bench.portal.measures import until
from bench.results import Result
from bench.sizes import size
from bench.web import Client, at_once
from clusters.catalog.models import Flavor
from clusters.clouds.drivers.kubernetes.render import names
from clusters.runs.models import Run
from portal.models import Appcode
from tests.kube.plane import GPU, Object, Plane, Refused, phase
from tests.running import Portal

GANGS = int(os.environ.get("COMPETING_RUNS") or size(120, 3))
# GPUs of a gang at most, so that each fits beside a node that is away; GPUs that an appcode owns, and may borrow.
LARGEST, QUOTA, BORROW = size(64, 4), size(80, 4), size(80, 4)
TASKS, GPUS = size(16, 2), (1, 1, 2, 4, 8)
# Seconds of a program: with much shorter ones than people run, this would measure what a run costs at its start and end alone.
SECONDS = size(20, 2), size(60, 5)
CLASSES = ("urgent", "normal", "normal", "normal", "spare")
# kube-scheduler binds pod by pod. A gang that has nodes for some of its tasks for longer than that is half.
BINDING = 5.0
LOOK_SECONDS, TIMES_FLOOR = 24 * 3600, 1.15
# Seconds in which a node is away and in which all are there; seconds between pods of other software, and their life.
AWAY, THERE, OTHERS_EVERY, OTHERS_LIFE = 3.0, 4.0, 2.0, 5.0
FLOOR, OTHERS = "bare-gangs", "others"
MANY = 10_000


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
        template = {
            "metadata": {"labels": {names.CLUSTER: self.name, names.APPCODE: self.appcode}},
            "spec": {"restartPolicy": "Never", "containers": [container]},
        }
        count = {"parallelism": self.tasks, "completions": self.tasks, "completionMode": "Indexed"}
        spec = {**count, "backoffLimit": 1000, "template": template}
        return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": self.name}, "spec": spec}


def competing(api: Client, portal: Portal, plane: Plane, codes: Sequence[str]) -> list[Result]:
    gangs = list(_gangs(codes))
    for gpus in set(GPUS):
        Flavor.objects.get_or_create(
            name=f"competing-{gpus}", title=f"Competing, {gpus} GPU", cpu_milli=200, memory_mb=128, gpus=gpus
        )
    terms = Appcode.objects.filter(code__in=codes)
    before = {each.pk: (each.gpu_quota, each.gpu_borrow) for each in terms}
    terms.update(gpu_quota=QUOTA, gpu_borrow=BORROW)
    try:
        with _disturbed(plane), Look(plane, gangs).looking() as ours:
            used = _of_portal(portal)
            _submit(api, gangs)
            used = _of_portal(portal) - used
    finally:
        for pk, (quota, borrow) in before.items():
            Appcode.objects.filter(pk=pk).update(gpu_quota=quota, gpu_borrow=borrow)
    runs = list(Run.objects.filter(cluster__name__in=[gang.name for gang in gangs]).select_related("cluster"))
    placed = {run.cluster.name: run.placed_at or run.created_at for run in runs}
    with _disturbed(plane), Look(plane, gangs).looking() as alone:
        made = Alone(plane, sorted(gangs, key=lambda gang: placed[gang.name])).run()
    return _results(gangs, runs, made, ours, alone, used)


def _results(
    gangs: Sequence[Gang], runs: Sequence[Run], made: dict[str, float], ours: Look, alone: Look, used: float
) -> list[Result]:
    pods, gpus = sum(gang.tasks for gang in gangs), sum(ours.gpus.values())
    what = f"{GANGS:,} gangs with {pods:,} pods of {SECONDS[0]}–{SECONDS[1]} s"
    least = sum(gang.tasks * gang.gpus * gang.seconds for gang in gangs) / gpus
    whole = {run.pk: run for run in runs if run.placed_at and run.whole_at and not run.times_given_back}
    bound = [(run.whole_at - run.placed_at).total_seconds() for run in whole.values()]  # type: ignore[operator]
    theirs = [alone.whole[name] - at for name, at in made.items() if name in alone.whole]
    return [
        Result(
            f"{what}, mean from the first POST until all of a gang have nodes", statistics.mean(ours.started), "s", None,
            statistics.mean(alone.started), times=TIMES_FLOOR,
        ),
        Result(f"{what}, from the first POST until nothing is left", ours.seconds, "s", None, alone.seconds),
        Result("The same, if all GPUs were busy all the time", least, "s"),
        Result("A gang: from its places until all of it have nodes, median", statistics.median(bound or [0]), "s", None,
               statistics.median(theirs or [0])),
        Result("A gang: from its last program's end until nothing is left, median", statistics.median(ours.left or [0]),
               "s", None, statistics.median(alone.left or [0])),
        Result(f"Half gangs: for more than {BINDING:g} s", ours.half.count, "", 0, alone.half.count or None),
        Result("half_gang_seconds", ours.half.seconds, "s", 0, alone.half.seconds or None),
        Result("Of these, seconds in which kube-scheduler found no room for one of its pods", ours.stuck.seconds, "s", None,
               alone.stuck.seconds or None),
        Result("Half gangs: the longest, while kube-scheduler bound its pods", ours.half.longest, "s", None,
               alone.half.longest or None),
        Result("Half gangs: the longest after a task lost its node", ours.disturbed.longest, "s", None,
               alone.disturbed.longest or None),
        Result(f"Changes after which a node held too much, of {ours.looks:,}", ours.over_node, "", 0),
        Result("Changes after which an appcode held more than its quota and what it may borrow", ours.over_limit, "", 0),
        Result("Gangs not run to their end", GANGS - sum(run.phase == Run.Phase.SUCCEEDED for run in runs), "", 0),
        Result("Times that places were given back", sum(run.times_given_back for run in runs), ""),
        Result("Processor time of the portal for a gang", used / GANGS, "s"),
        Result("Processor time of the control plane for a gang", ours.used / GANGS, "s", None, alone.used / GANGS),
        Result(f"{MANY:,} such gangs would take", ours.seconds / GANGS * MANY / 3600, "h", None,
               alone.seconds / GANGS * MANY / 3600),
    ]  # fmt: skip


def _gangs(codes: Sequence[str]) -> Iterator[Gang]:
    chance = random.Random(31)  # noqa: S311  the same gangs every time
    for number in range(GANGS):
        gpus = chance.choice([each for each in GPUS if each <= LARGEST])
        tasks = min(chance.randint(1, TASKS), LARGEST // gpus)
        code, kind = codes[number % len(codes)], chance.choice(CLASSES)
        yield Gang(f"gang-{number:03}", code, tasks, gpus, chance.randint(*SECONDS), kind)


def _submit(api: Client, gangs: Sequence[Gang]) -> None:
    """Returns when all have ended and nothing is left of them."""
    at_once(4, [partial(api.send, "POST", f"/appcodes/{gang.appcode}/clusters", gang.manifest) for gang in gangs])
    names_ = [gang.name for gang in gangs]
    until(lambda: not Run.objects.filter(cluster__name__in=names_, gone=False).exists(), LOOK_SECONDS, every=0.5)


class Alone:
    """Makes the Jobs of gangs in this order, each when all of its GPUs are free, and deletes those that are complete."""

    def __init__(self, plane: Plane, gangs: Sequence[Gang]) -> None:
        self._plane, self._waiting = plane, list(reversed(gangs))
        self._path = f"/apis/batch/v1/namespaces/{FLOOR}/jobs"
        self._held = {gang.name: gang.tasks * gang.gpus for gang in gangs}
        self._free = sum(_gpus_of(plane).values())
        self._deleted: set[str] = set()
        self._made: dict[str, float] = {}
        self._calls: list[Future[Object]] = []

    def run(self) -> dict[str, float]:
        """Returns when each was made."""
        self._plane.make_namespace(FLOOR)
        with ThreadPoolExecutor(4) as self._threads:
            self._plane.until(self._path, self._turn, LOOK_SECONDS)
        return self._made

    def _turn(self, jobs: dict[str, Object]) -> bool:
        if refused := next((call.exception() for call in self._calls if call.done() and call.exception()), None):
            raise RuntimeError(f"a Job was neither made nor deleted: {refused}")
        for name, job in jobs.items():
            if name not in self._deleted and _is_complete(job):
                self._deleted.add(name)
                self._free += self._held[name]
                path = f"{self._path}/{name}"
                call = self._threads.submit(self._plane.request, "DELETE", path, propagationPolicy="Foreground")
                self._calls.append(call)
        while self._waiting and self._held[self._waiting[-1].name] <= self._free:
            gang = self._waiting.pop()
            self._free -= self._held[gang.name]
            self._made[gang.name] = time.monotonic()
            self._calls.append(self._threads.submit(self._plane.request, "POST", self._path, gang.job))
        return len(self._deleted) == len(self._held) and not jobs


def _is_complete(job: Object) -> bool:
    return any(each["type"] == "Complete" and each["status"] == "True" for each in job["status"].get("conditions", ()))


def _of_portal(portal: Portal) -> float:
    assert portal.process is not None
    return idle.cpu(portal.process.pid, "")


def _of_plane(plane: Plane) -> float:
    return sum(sum(psutil.Process(pid).cpu_times()[:2]) for pid in plane.pids())


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
    """For how long gangs had nodes for some of their tasks only: `seconds` and `count` of those beyond BINDING."""

    def __init__(self) -> None:
        self.seconds = self.longest = 0.0
        self.count = 0
        self._since: dict[str, float] = {}

    def see(self, gangs: set[str], now: float) -> None:
        for gang in self._since.keys() - gangs:
            half = now - self._since.pop(gang)
            self.longest = max(self.longest, half)
            self.count += half > BINDING
            self.seconds += half if half > BINDING else 0.0
        for gang in gangs:
            self._since.setdefault(gang, now)


class Look:
    """Watches all pods, and judges them after every change. `half`: gangs that have not been whole yet; `stuck`: those of them
    with a pod for which there is no room, while the others only wait for a busy scheduler; `disturbed`: those that were whole,
    and of which no task has succeeded. `whole`: when a gang first was; `started`: the seconds until then. `left`: the seconds
    from the end of a gang's last program until nothing was left of it."""

    def __init__(self, plane: Plane, gangs: Sequence[Gang]) -> None:
        self._plane, self._gangs = plane, {gang.name: gang for gang in gangs}
        self.gpus = _gpus_of(plane)
        self.half, self.stuck, self.disturbed = Half(), Half(), Half()
        self.whole: dict[str, float] = {}
        self.looks = self.over_node = self.over_limit = 0
        self.left: list[float] = []
        self.seconds = self.used = 0.0
        self._begin = 0.0
        self._whole_now: set[str] = set()
        self._ended: dict[str, float] = {}

    @property
    def started(self) -> list[float]:
        return [at - self._begin for at in self.whole.values()]

    @contextmanager
    def looking(self) -> Iterator[Look]:
        done = threading.Event()
        used, self._begin = _of_plane(self._plane), time.monotonic()
        with ThreadPoolExecutor(1) as thread:
            looking = thread.submit(self._until, done)
            try:
                yield self
            finally:
                self.seconds = time.monotonic() - self._begin
                self.used = _of_plane(self._plane) - used
                done.set()
            # Who did not look to the end has seen nothing.
            looking.result()

    def _until(self, done: threading.Event) -> None:
        def look(pods: dict[str, Object]) -> bool:
            self._look(list(pods.values()), time.monotonic())
            return done.is_set()

        self._plane.until("/api/v1/pods", look, LOOK_SECONDS)

    def _look(self, pods: Sequence[Object], now: float) -> None:
        by_node, by_code, shut = Counter[str](), Counter[str](), set[str]()
        there, bound, over, left = Counter[str](), Counter[str](), Counter[str](), Counter[str]()
        for pod in pods:
            labels, node = pod["metadata"].get("labels", {}), pod["spec"].get("nodeName")
            gang, gpus = self._gangs.get(labels.get(names.CLUSTER, "")), _gpus(pod)
            alive = phase(pod) not in ("Succeeded", "Failed")
            if node and alive:
                by_node[node] += gpus
            if gang is None:
                continue
            there[gang.name] += 1
            left[gang.name] += alive
            over[gang.name] += phase(pod) == "Succeeded"
            if not node and _has_no_room(pod):
                shut.add(gang.name)
            if node and alive:
                bound[gang.name] += "deletionTimestamp" not in pod["metadata"]
                by_code[gang.appcode] += gpus if gang.priority_class != "spare" else 0
        self.looks += 1
        self.over_node += any(held > self.gpus.get(node, 0) for node, held in by_node.items())
        self.over_limit += any(held > QUOTA + BORROW for held in by_code.values())
        # One of which no pod is left begins anew.
        self._whole_now &= there.keys()
        for name, count in bound.items():
            if count + over[name] >= self._gangs[name].tasks:
                self._whole_now.add(name)
                self.whole.setdefault(name, now)
        half = {name for name, count in bound.items() if count and not over[name] and count < self._gangs[name].tasks}
        self.half.see(half - self._whole_now, now)
        self.stuck.see((half - self._whole_now) & shut, now)
        self.disturbed.see(half & self._whole_now, now)
        for name in there:
            if over[name] and not left[name]:
                self._ended.setdefault(name, now)
        self.left += [now - self._ended.pop(name) for name in self._ended.keys() - there.keys()]


def _gpus_of(plane: Plane) -> dict[str, int]:
    return {name: int(node["status"]["allocatable"].get(GPU, 0)) for name, node in plane.nodes().items()}


def _has_no_room(pod: Object) -> bool:
    return any(each.get("reason") == "Unschedulable" for each in pod["status"].get("conditions", ()))


def _gpus(pod: Object) -> int:
    return sum(int(each.get("resources", {}).get("limits", {}).get(GPU, 0)) for each in pod["spec"]["containers"])
