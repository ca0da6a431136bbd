"""Services: lost requests while versions change, a replica dies or the portal stands still; and the cost of the way.

Requests come at a steady rate, timed from when each was due. The model only adds some numbers, so that its own time
does not hide the cost of the way. The floors are the same model server, started by hand and called directly.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
from django.conf import settings
from django.db.models import Sum

from bench.floors import running
from bench.portal.measures import api_of, until
from bench.portal.reading import bucket
from bench.results import Result, quantile
from bench.sizes import size
from bench.web import Client, at_once, one_by_one
from clusters.frameworks.serving import SERVE
from clusters.runs.models import Run
from clusters.services.models import Replica, Rollout
from portal.api.money import money
from portal.up.services import free_port, private_folder
from tests.load import Load

if TYPE_CHECKING:
    from bench.seed import Seeded
    from tests.running import Portal

# Requests per second, and the seconds of load while versions change.
RATE, LASTS = size(200, 20), size(120, 3)
STILL, CALM = size(60, 1), size(5, 1)
ASKED, WARM_UP, THREADS, ROUNDS = size(2000, 4), size(100, 0), 8, size(5, 1)
WAITING = size(100, 2)
REPLICAS = size(2, 1)
MODEL = """
class Model:
    inputs = [("x", "FP32", (-1, 4))]
    outputs = [("sum", "FP32", (-1,))]
    def __init__(self, folder):
        pass
    def predict(self, inputs):
        return {"sum": inputs["x"].sum(axis=1) + VERSION}
"""
# The same model in TensorFlow, which takes seconds to load.
SAVED = """
import sys
import tensorflow as tf
class Adds(tf.Module):
    @tf.function(input_signature=[tf.TensorSpec((None, 4), tf.float32, "x")])
    def serve(self, x):
        return {"sum": tf.reduce_sum(x, axis=1)}
adds = Adds()
tf.saved_model.save(adds, sys.argv[1], signatures=adds.serve)
"""
# In the smallest size version 3 is one more of the others: each process of TensorFlow loads it for seconds.
FORMAT = ("saved-model", "python")[size(0, 1)]
BODY = {"instances": [[1, 2, 3, 4]]}
PATH = "/v1/models/adds:predict"


@dataclass(frozen=True)
class World:
    portal: Portal
    api: Client
    code: str
    # The files of the versions: v1, v2, v3.
    files: Path

    @property
    def path(self) -> str:
        return f"/appcodes/{self.code}/services/adds"

    def status(self) -> dict[str, Any]:
        found: dict[str, Any] = self.api.json("GET", self.path)["status"]
        return found

    def post(self, verb: str, body: object = None) -> Any:
        return self.api.json("POST", f"{self.path}/{verb}", body or {})

    def over(self, seconds: float = 120) -> Rollout:
        """Waits until the last rollout has ended and returns it."""
        until(
            lambda: not Rollout.objects.filter(service__name="adds", phase__in=Rollout.LIVING).exists(),
            seconds,
            every=0.1,
        )
        found = Rollout.objects.filter(service__name="adds").first()
        assert found
        return found

    def serving(self, count: int) -> None:
        until(
            lambda: Replica.objects.filter(service__name="adds", state=Replica.State.SERVING).count() == count,
            120,
            every=0.05,
        )

    def programs(self, *names: str) -> list[int]:
        return [pid for pid, line in self.portal.programs().items() if any(each in line for each in names)]


def replicas(portal: Portal, tenants: Seeded) -> list[Result]:
    """services: rollouts, killed replicas and paused programs under load, the cost of the way, from zero, cost by version"""
    with _versions(portal, tenants) as world:
        token = _created(world)
        headers = {
            "Host": world.status()["address"].removeprefix("http://").rstrip("/"),
            "Authorization": f"Bearer {token}", "Content-Type": "application/json",
        }  # fmt: skip
        way = Client(f"http://127.0.0.1:{portal.port}", headers)
        until(lambda: _answers(way), 30)
        measured = _way(world, way, "python")
        found = [*_little(measured), *_changes(world, headers, measured.by_hand), *_deaths(world, headers)]
        found += _from_zero(world, way)
        found += _tensorflow(world, way)
        found += _cost(world)
        world.api.send("DELETE", world.path)
        until(lambda: not Run.objects.filter(gone=False).exists(), 60, every=0.1)
        return found


@contextmanager
def _versions(portal: Portal, tenants: Seeded) -> Iterator[World]:
    """Registers a model of the first appcode with its three versions, which are in a store of its own."""
    code = tenants.codes[0]
    with bucket(code, "bench-models") as (files, _):
        for number in (1, 2) if FORMAT == "saved-model" else (1, 2, 3):
            folder = private_folder(files / f"v{number}")
            (folder / "model.py").write_text(MODEL.replace("VERSION", str(number)))
        if FORMAT == "saved-model":
            subprocess.run([sys.executable, "-c", SAVED, str(files / "v3")], check=True, capture_output=True)
        world = World(portal, api_of(portal, tenants), code, files)
        models = f"/appcodes/{code}/models"
        world.api.send("POST", models, {"metadata": {"name": "adds"}})
        for number, format_ in ((1, "python"), (2, "python"), (3, FORMAT)):
            said = {"datastore": "bench-models", "path": f"v{number}", "format": format_, "sample": BODY}
            world.api.send("POST", f"{models}/adds/versions", {"spec": said})
            version = f"{models}/adds/versions/{number}"
            until(partial(_is_ready, world, version), 60, every=0.1)
        world.api.send("PUT", f"{models}/adds/aliases/champion", {"version": 1})
        yield world


def _is_ready(world: World, version: str) -> bool:
    return bool(world.api.json("GET", version)["status"]["state"] == "Ready")


def _created(world: World) -> str:
    """Creates the service with REPLICAS replicas of version 1. Returns a token for it."""
    spec = {
        "model": "adds@champion", "image": "bench", "flavor": "serving", "replicas": {"least": REPLICAS, "most": REPLICAS},
        "rollout": {"follow": "never", "keepWarm": 60},
    }  # fmt: skip
    world.api.send("POST", f"/appcodes/{world.code}/services", {"metadata": {"name": "adds"}, "spec": spec})
    world.serving(REPLICAS)
    world.over()
    return str(world.post("tokens", {"name": "bench"})["token"])


def _answers(way: Client) -> bool:
    try:
        way.send("POST", PATH, BODY)
    except (OSError, RuntimeError):
        return False
    return True


@dataclass(frozen=True)
class _Way:
    """Median seconds per request: one by one, and of THREADS callers at once. `…_direct`: to the server started by hand,
    which took `by_hand` seconds to start."""

    by_hand: float
    alone: float
    alone_direct: float
    many: float
    many_direct: float


def _way(world: World, way: Client, format_: str) -> _Way:
    """Measures the service and a server started by hand in turns."""
    with _by_hand(world, format_) as (direct, by_hand):
        alone: dict[Client, list[float]] = {direct: [], way: []}
        many: dict[Client, list[float]] = {direct: [], way: []}
        for each in alone:
            one_by_one(WARM_UP, partial(each.send, "POST", PATH, BODY))
        for _ in range(ROUNDS):
            for each in alone:
                ask = partial(each.send, "POST", PATH, BODY)
                alone[each] += one_by_one(ASKED // ROUNDS, ask)
                begin = time.perf_counter()
                at_once(THREADS, [ask] * ASKED)
                many[each].append((time.perf_counter() - begin) / ASKED)
    medians = (quantile(times[each], 0.5) for times in (alone, many) for each in (way, direct))
    return _Way(by_hand, *medians)


def _little(found: _Way) -> list[Result]:
    """The cost of the way itself. The number for many callers has no target: four programs share the cores
    with a model that does nothing, so on two cores it shows how busy they are, not the capacity of the way."""
    added = (found.alone - found.alone_direct) * 1000
    return [
        Result("The way to a replica, with its token, adds: median", added, "ms", 2, found.alone_direct * 1000),
        Result(
            f"A request of {THREADS} callers at once, to next to no model in {REPLICAS} replicas", found.many * 1000, "ms", None,
            found.many_direct * 1000,
        ),
    ]  # fmt: skip


def _changes(world: World, headers: dict[str, str], by_hand: float) -> list[Result]:
    """Rolls out, rolls back while the old replicas are warm, and rolls out by canary, all within LASTS seconds of requests."""
    with _load(world, headers) as load:
        began = time.perf_counter()
        time.sleep(LASTS / 6)
        steady = time.perf_counter()
        world.post("deploy", {"version": 2, "reason": "Measured"})
        world.over()
        rolled = time.perf_counter()
        # The new version answered before the old replicas were asked to leave.
        time.sleep(CALM)
        back = time.perf_counter()
        world.post("rollback", {"reason": "Measured"})
        until(lambda: world.api.json("GET", world.path)["status"]["model"] == "adds/1", 30)
        back = time.perf_counter() - back
        world.post("deploy", {"version": 2, "kind": "canary", "weight": 20, "minutes": 1})
        until(
            lambda: world.status()["rollout"] is None or world.status()["rollout"]["phase"] == "Comparing",
            60,
            every=0.2,
        )
        world.post("promote")
        world.over()
        time.sleep(max(0.0, LASTS - (time.perf_counter() - began)))
    before, after = load.seconds(until=steady), load.seconds(since=steady)
    lost = Counter({came: count for came, count in load.came().items() if came != "200"})
    asked = len(load.asked)
    started = _started()
    return [
        Result(f"Requests at {RATE} a second while versions change", asked, ""),
        Result(
            f"… of them without an answer ({dict(lost)})" if lost else "… of them without an answer",
            sum(lost.values()),
            "",
            0,
        ),
        Result(
            "… p99 while versions change",
            quantile(after, 0.99) * 1000,
            "ms",
            None,
            quantile(before, 0.99) * 1000,
            times=2,
        ),
        Result("deploy → all replicas are of the new version", rolled - steady, "s"),
        Result("A new replica of next to no model, until it answers: median", started, "s", None, by_hand),
        Result("rollback → the version before answers, its replicas warm", back, "s", 2),
    ]


def _tensorflow(world: World, way: Client) -> list[Result]:
    """Rolls out once more, to replicas whose model takes as long to load and answer as users' models do."""
    world.post("scale", {"least": REPLICAS, "most": REPLICAS})
    world.serving(REPLICAS)
    world.post("deploy", {"version": 3})
    rollout = world.over()
    assert (rollout.to_revision.model, rollout.phase) == ("adds/3", "Promoted"), rollout.message
    started = _started()
    # A gateway closes a connection that was idle for minutes, and the first request on it fails.
    until(lambda: _answers(way), 30)
    found = _way(world, way, FORMAT)
    by_hand = [found.by_hand]
    for _ in range(size(2, 0)):
        with _by_hand(world, FORMAT) as (_, seconds):
            by_hand.append(seconds)
    return [
        Result(
            "A new replica with a SavedModel, until it answers: median", started, "s", None, quantile(by_hand, 0.5), times=1.3
        ),
        Result(
            f"A request of {THREADS} callers at once, to a SavedModel in {REPLICAS} replicas", found.many * 1000, "ms", None,
            found.many_direct * 1000, times=1.25,
        ),
    ]  # fmt: skip


def _started() -> float:
    """Median start time of the REPLICAS newest replicas, in seconds."""
    newest = Replica.objects.filter(service__name="adds", served_at__isnull=False).order_by("-pk")[:REPLICAS]
    return quantile([(each.served_at - each.created_at).total_seconds() for each in newest if each.served_at], 0.5)


@contextmanager
def _by_hand(world: World, format_: str) -> Iterator[tuple[Client, float]]:
    """Runs the same server by hand; yields a client and the seconds until it answered. A rollout starts one by one, too."""
    with tempfile.TemporaryDirectory() as folder:
        files, port = str(world.files / ("v1" if format_ == "python" else "v3")), free_port()
        env = {
            "PATH": os.environ["PATH"], "HOME": folder, "HOST": "127.0.0.1", "PORT": str(port), "PORTAL_MODEL": files,
            "PORTAL_MODEL_NAME": "adds", "PORTAL_MODEL_VERSION": "1", "PORTAL_MODEL_FORMAT": format_,
            "PORTAL_MODEL_SAMPLE": json.dumps(BODY),
        }  # fmt: skip
        begin = time.perf_counter()
        with running([sys.executable, "-c", SERVE], env):
            direct = Client(f"http://127.0.0.1:{port}", {"Content-Type": "application/json"})
            until(lambda: _answers(direct), 60)
            yield direct, time.perf_counter() - begin


def _load(world: World, headers: dict[str, str]) -> Load:
    return Load(f"http://127.0.0.1:{world.portal.port}{PATH}", headers, json.dumps(BODY).encode(), RATE)


def _deaths(world: World, headers: dict[str, str]) -> list[Result]:
    """Kills a replica; then pauses web server, worker and controller for STILL seconds."""
    with _load(world, headers) as load:
        time.sleep(CALM)
        at = time.perf_counter()
        for pid in _of_replica(world):
            os.kill(pid, signal.SIGKILL)
        time.sleep(2 * CALM)
    killed = sum(count for came, count in load.came(since=at - 1).items() if came != "200")
    world.serving(REPLICAS)
    still = world.programs("gunicorn", "celery", "manage.py controller")
    with _load(world, headers) as load:
        for pid in still:
            os.kill(pid, signal.SIGSTOP)
        try:
            time.sleep(STILL)
        finally:
            for pid in still:
                os.kill(pid, signal.SIGCONT)
    silent = sum(count for came, count in load.came().items() if came != "200")
    until(lambda: bool(world.status()), 60)
    return [
        Result("kill -9 of a replica: requests without an answer (those that it had)", killed, "", 8),
        Result(f"Web server, worker and controller stand still for {STILL} s: without an answer", silent, "", 0),
    ]


def _of_replica(world: World) -> list[int]:
    """The processes of one replica's task."""
    cluster = world.status()["eachReplica"][0]["cluster"]
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("PORTAL_CLUSTER") == cluster:
                found.append(process.pid)
        except psutil.Error:
            continue
    return found


def _from_zero(world: World, way: Client) -> list[Result]:
    """Wakes a sleeping service by WAITING callers at once."""
    world.post("scale", {"replicas": 0})
    until(
        lambda: not Replica.objects.filter(service__name="adds").exclude(state=Replica.State.GONE).exists(),
        180,
        every=0.1,
    )
    world.post("scale", {"least": 0, "most": REPLICAS})
    lost: list[str] = []

    def ask() -> None:
        try:
            way.send("POST", PATH, BODY)
        except (OSError, RuntimeError) as error:
            lost.append(str(error)[:80])

    begin = time.perf_counter()
    at_once(WAITING, [ask] * WAITING)
    return [
        Result(
            f"From zero: of {WAITING} that wait, without an answer {sorted(set(lost))[:2] if lost else ''}".strip(),
            len(lost),
            "",
            0,
        ),
        Result("… and all of them answered in", time.perf_counter() - begin, "s"),
    ]


def _cost(world: World) -> list[Result]:
    """Compares the cost by version with the cost of the runs, from their segments. The flavor has CPU cores, no GPU."""
    world.post("disable")
    until(lambda: not Run.objects.filter(gone=False, cluster__part_of="services/adds").exists(), 60, every=0.1)
    runs = Run.objects.filter(cluster__part_of="services/adds", cluster__appcode__code=world.code)
    by_version = runs.values_list("replica__revision").annotate(paid=Sum("cost")).values_list("paid", flat=True)
    said = sum(
        float(each["cost"]["amount"] if isinstance(each["cost"], dict) else each["cost"])
        for each in world.status()["revisions"]
    )
    # Rounded per version, as the status rounds it.
    summed = sum(float(money(each).amount) for each in by_version)
    return [
        Result("Cost of all versions, beside that of their runs", said, settings.CURRENCY, None, summed, times=1.000001)
    ]
