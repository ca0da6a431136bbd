"""Many runs: the pace of a sweep's trials on Kubernetes, the page of a sweep of 10,000, the pause between stages.

A trial of `true` is over as soon as its pod runs: kwok ends it (tests/kube/stages.py). The floor is one Job whose pods
do the same, started by kubectl: without owner, network objects, database rows and metering.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from decimal import Decimal
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import psutil
from django.db import connection, transaction
from django.utils import timezone

from bench import idle as idling
from bench.kubernetes.kubectl import MUTATING, kubectl
from bench.portal.measures import api_of, pages, signed_in, until
from bench.results import Result, quantile
from bench.seed import SPEC
from bench.sizes import size
from bench.web import Client, one_by_one
from clusters.runs.models import Cluster, Run
from clusters.sweeps.manifest import SweepSpec, trial_name
from clusters.sweeps.models import Sweep, Trial
from portal.models import Appcode

if TYPE_CHECKING:
    from bench.seed import Seeded
    from tests.kube.plane import Plane
    from tests.running import Portal

TRIALS, AT_ONCE, TIMES_FLOOR = size(1000, 2), size(100, 2), 1.5
ASKED, WARM_UP, PAGE_MS = size(200, 1), size(10, 0), 150
PER_SECOND, CALLS = 60, 6
SHOWN = size(10_000, 10)
STAGES = size(7, 2)


def sweeping(portal: Portal, tenants: Seeded) -> list[Result]:
    """the page of a sweep of 10,000 trials, and its trials by REST"""
    code = tenants.codes[0]
    _fill(code, tenants)
    browser, api = signed_in(tenants.root), api_of(portal, tenants)
    page = pages(portal, browser)
    path, rest = f"/sweeps/{code}/shown", f"/appcodes/{code}/sweeps/shown/trials"
    asked = (
        ("Page of a sweep", page, path),
        ("Page of a sweep, its charts", page, f"{path}/charts"),
        ("REST, trials of a sweep", api, rest),
        ("REST, its best trials", api, f"{rest}?sort=value"),
        ("REST, its dearest trials that have succeeded", api, f"{rest}?sort=-cost&phase=Succeeded"),
    )
    found = []
    for name, client, address in asked:
        one_by_one(WARM_UP, lambda client=client, address=address: client.send("GET", address))  # type: ignore[misc]
        took = one_by_one(ASKED, lambda client=client, address=address: client.send("GET", address))  # type: ignore[misc]
        found.append(Result(f"{name} of {SHOWN:,}: p99", quantile(took, 0.99) * 1000, "ms", PAGE_MS))
    return found


def _fill(code: str, tenants: Seeded) -> None:
    """Writes a sweep of SHOWN trials into the database. All but the last AT_ONCE, which still live, have a value."""
    now, root = timezone.now(), tenants.root
    spec = SweepSpec.model_validate(_manifest("shown", SHOWN)["spec"] | {"goal": {"metric": "loss"}})
    with transaction.atomic():
        appcode = Appcode.objects.get(code=code)
        sweep = Sweep.objects.create(
            appcode=appcode, name="shown", spec=spec.model_dump(mode="json", by_alias=True), created_by=root, acts_for=root,
            phase=Sweep.Phase.PAUSED, settled=True,
        )  # fmt: skip
        part = {"appcode": appcode, "spec": SPEC, "part_of": sweep.part_of, "created_by": root, "run_count": 1}
        clusters = Cluster.objects.bulk_create(
            (Cluster(name=trial_name("shown", n, 0), **part) for n in range(SHOWN)), batch_size=2000
        )
        ended = {
            "number": 1, "spec": SPEC, "resources": {}, "gpus": 1, "created_by": root, "desired": Run.Desired.ENDED,
            "phase": Run.Phase.SUCCEEDED, "verdict": Run.Phase.SUCCEEDED, "gone": True, "started_at": now, "finished_at": now,
            "usage_as_of": now, "numbers_due": False, "roles": {"master": {"ready": 0, "count": 1}},
        }  # fmt: skip
        runs = Run.objects.bulk_create(
            (Run(cluster=each, cost=Decimal(n % 977) / 100, **ended) for n, each in enumerate(clusters)),
            batch_size=2000,
        )
        for cluster, run in zip(clusters, runs, strict=True):
            cluster.current_run = run
        Cluster.objects.bulk_update(clusters, ["current_run"], batch_size=2000)
        Trial.objects.bulk_create(
            (
                Trial(sweep=sweep, number=n, parameters={"number": n + 1}, cluster=cluster, **_came_to(n))
                for n, cluster in enumerate(clusters)
            ),
            batch_size=2000,
        )
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE clusters_trial, clusters_cluster, clusters_run")


def _came_to(number: int) -> dict[str, Any]:
    if number >= SHOWN - AT_ONCE:
        return {}
    return {"phase": Trial.Phase.SUCCEEDED, "value": float(number * 7919 % SHOWN), "finished_at": timezone.now()}


def staging(portal: Portal, tenants: Seeded) -> list[Result]:
    """on this machine: from the end of a stage to the first process of the next one"""
    api, code = api_of(portal, tenants), tenants.codes[0]
    # Each stage writes the start time of its process into its log, a file of this machine.
    spec = {"image": "bench", "command": "date +%s.%N", "retries": 0, "roles": {"master": {"flavor": "cpu"}}}
    stages = [{"name": f"s{n}", "spec": spec, **({"after": [f"s{n - 1}"]} if n else {})} for n in range(STAGES)]
    body = {"kind": "pipeline", "metadata": {"name": "gaps"}, "spec": {"stages": stages}}
    api.send("POST", f"/appcodes/{code}/pipelines", body)
    api.send("POST", f"/appcodes/{code}/pipelines/gaps/run", {})
    runs = Run.objects.filter(cluster__part_of="pipelines/gaps").order_by("pk")
    until(lambda: runs.filter(phase=Run.Phase.SUCCEEDED).count() == STAGES, 120)
    begun = [_said(portal, run) for run in runs]
    gaps = [after - before for before, after in pairwise(begun)]
    api.send("DELETE", f"/appcodes/{code}/pipelines/gaps")
    name = f"A stage that only says the time → the next one's process, worst of {len(gaps)}"
    return [Result(name, max(gaps), "s", 1, min(gaps))]


def _said(portal: Portal, run: Run) -> float:
    [log] = (portal.data / "cloud" / "runs" / str(run.pk) / "tasks").glob("*/log")
    return float(log.read_text().split()[0])


def trials(portal: Portal, tenants: Seeded, plane: Plane, code: str) -> list[Result]:
    """Measures TRIALS trials of `true`, AT_ONCE at once, from the POST to the end of the sweep: in one run, and each as
    its own cluster. The floor is one Job of as many pods."""
    if WARM_UP:
        _sweep(api_of(portal, tenants), code, "warm", AT_ONCE)
        _job(plane, "warm", AT_ONCE)
    alone = _seconds(plane)
    floor = _job(plane, "floor", TRIALS)
    alone = (_seconds(plane) - alone) / TRIALS * 1000
    used = _used(portal, plane)
    took = _sweep(api_of(portal, tenants), code, "copies", TRIALS, one_run=True)
    _until_gone("sweeps/copies")
    spent = _spent(used, _used(portal, plane))
    size = f"of `true`, {AT_ONCE} at once"
    one = f"Kubernetes: {TRIALS:,} trials in one run, {size}"
    found = [
        Result(f"{one}, POST → Succeeded", took, "s", TRIALS / PER_SECOND),
        Result(f"{one}, beside one Job of as many pods", took, "s", floor=floor, times=TIMES_FLOOR),
        Result(
            "A trial in one run: processor time of the control plane", spent.pop("the control plane"), "ms", None, alone
        ),
        *(Result(f"A trial in one run: processor time of {name}", spent[name], "ms") for name in spent),
    ]
    calls, done, used = len(plane.calls_of_audited()), _transactions(), _used(portal, plane)
    # The gateway may have closed the kept connection meanwhile.
    took = _sweep(api_of(portal, tenants), code, "many", TRIALS)
    _until_gone("sweeps/many")
    done = (_transactions() - done) // TRIALS
    spent = _spent(used, _used(portal, plane))
    made = Counter(call["verb"] for call in plane.calls_of_audited()[calls:])
    writes = sum(count for verb, count in made.items() if verb in MUTATING) / TRIALS
    reads = sum(count for verb, count in made.items() if verb == "get" or verb == "list") / TRIALS
    return [
        *found,
        Result(f"Kubernetes: {TRIALS:,} trials {size}, POST → Succeeded", took, "s", TRIALS / PER_SECOND),
        Result("Kubernetes: the same, beside one Job of as many pods", took, "s", floor=floor, times=TIMES_FLOOR),
        Result("Kubernetes: calls of a trial that change something", writes, "", CALLS),
        Result("Kubernetes: calls of a trial that read", reads, ""),
        Result("A trial: transactions of PostgreSQL", done, ""),
        Result("A trial: processor time of the control plane", spent.pop("the control plane"), "ms", None, alone),
        *(Result(f"A trial: processor time of {name}", spent[name], "ms") for name in spent),
    ]


def _until_gone(whole: str) -> None:
    until(lambda: not Run.objects.filter(cluster__part_of=whole, gone=False).exists(), 300, every=0.2)


def _sweep(api: Client, code: str, name: str, count: int, *, one_run: bool = False) -> float:
    begin = time.perf_counter()
    api.send("POST", f"/appcodes/{code}/sweeps", _manifest(name, count, one_run=one_run))
    until(lambda: Sweep.objects.filter(name=name).exclude(phase="Running").exists(), 600)
    took = time.perf_counter() - begin
    sweep = Sweep.objects.get(name=name)
    assert (sweep.phase, sweep.trials.filter(phase="Succeeded").count()) == ("Succeeded", count), sweep.message
    return took


def _manifest(name: str, count: int, *, one_run: bool = False) -> dict[str, Any]:
    framework, role = ("parallel", "worker") if one_run else ("tensorflow", "master")
    template = {
        "framework": framework, "image": "bench", "command": "true $number", "retries": 0, "roles": {role: {"flavor": "cpu"}},
    }  # fmt: skip
    number = {"type": "int", "low": 1, "high": count}
    spec = {
        "template": template,
        "parameters": {"number": number},
        "sampler": "grid",
        "parallel": AT_ONCE,
        "oneRun": one_run,
    }
    return {"kind": "sweep", "metadata": {"name": name}, "spec": spec}


def _job(plane: Plane, name: str, count: int) -> float:
    """Seconds from `kubectl apply` of an Indexed Job of plain pods (same program, AT_ONCE at a time) until all succeeded."""
    namespace = "trials"
    if not plane.request("GET", "/api/v1/namespaces", fieldSelector=f"metadata.name={namespace}")["items"]:
        plane.make_namespace(namespace)
    container = {"name": "task", "image": "example/bench:1", "command": ["bash", "-c", "true"]}
    spec = {
        "completionMode": "Indexed",
        "completions": count,
        "parallelism": AT_ONCE,
        "template": {"spec": {"restartPolicy": "Never", "containers": [container]}},
    }
    job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name, "namespace": namespace}, "spec": spec}
    file = plane.folder / f"{name}.json"
    file.write_text(json.dumps(job))
    path = f"/apis/batch/v1/namespaces/{namespace}/jobs"
    begin = time.perf_counter()
    kubectl(plane, "apply", "--server-side", "-f", str(file))
    plane.until(path, lambda jobs: jobs[name]["status"].get("succeeded") == count, 600)
    return time.perf_counter() - begin


def _used(portal: Portal, plane: Plane) -> dict[str, float]:
    """Seconds of processor time of each program so far."""
    assert portal.process is not None
    words = {"the worker": "celery", "the controller": "controller", "PostgreSQL": "postgres"}
    found = {name: idling.cpu(portal.process.pid, word) for name, word in words.items()}
    return found | {"the control plane": _seconds(plane)}


def _spent(before: dict[str, float], after: dict[str, float]) -> dict[str, float]:
    """Milliseconds per trial, from two results of `_used`."""
    return {name: (seconds - before[name]) / TRIALS * 1000 for name, seconds in after.items()}


def _seconds(plane: Plane) -> float:
    """Processor seconds of all of the control plane's programs so far."""
    times = [psutil.Process(pid).cpu_times() for pid in plane.pids()]
    return sum(each.user + each.system for each in times)


def _transactions() -> int:
    with connection.cursor() as cursor:
        cursor.execute("SELECT xact_commit FROM pg_stat_database WHERE datname = current_database()")
        return int(cursor.fetchone()[0])
