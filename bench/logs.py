"""What people wait for who read logs: a search in a long log of this machine, and the tab of 100 tasks on Kubernetes.

Kubelets are played by one server (tests/kube/kubelet.py), which counts what the API server reads of it and passes on.
"""

from __future__ import annotations

import json
import statistics
import time

from bench.measures import MB, api_of, signed_in, until
from bench.results import Result
from bench.seed import Seeded
from bench.sizes import size
from clusters.models import Run
from tests.kube.kubelet import played, stamped
from tests.kube.plane import Plane
from tests.running import Portal

TASKS, LINES, LENGTH = size(100, 10), size(100_000, 2000), 100
SEARCHED, TIMES = size(1_000_000, 5000), size(5, 1)


def searching(portal: Portal, tenants: Seeded) -> list[Result]:
    """the search in a log of 1,000,000 lines"""
    name, command = "long-log", f"seq -f 'step %.0f: loss 0.123 accuracy 0.987' {SEARCHED}"
    path = f"/clusters/{_made(portal, tenants, tenants.codes[0], name, command, 1)}/{name}"
    until(lambda: Run.objects.filter(cluster__name=name, phase="Succeeded").exists(), 300)
    browser, took = signed_in(tenants.root), []
    for n in range(TIMES):
        # At the end, so that all lines are looked at.
        begin = time.perf_counter()
        [found] = browser.get(f"{path}/logs/search?q=step {SEARCHED - n}:").json()["tasks"]
        took.append(time.perf_counter() - begin)
        assert (found["total"], found["lines"]) == (1, SEARCHED), found
    return [Result(f"a search in a log of {SEARCHED:,} lines, median of {TIMES}", statistics.median(took), "s", 2)]


def tailing(portal: Portal, tenants: Seeded, plane: Plane, code: str) -> list[Result]:
    """The log tab of TASKS tasks on Kubernetes: its first lines, and a search in one of their logs."""
    name = "long-logs"
    path = f"/clusters/{_made(portal, tenants, code, name, 'sleep 1000', TASKS)}/{name}"
    run = Run.objects.get(cluster__name=name)
    until(lambda: run.tasks.filter(phase="Running").count() == TASKS, 120)
    browser, opened, sent, looked = signed_in(tenants.root), [], [], []
    with played(plane, stamped(LINES, LENGTH)) as kubelets:
        asked = json.dumps({f"{task.role}-{task.index}": None for task in run.tasks.all()})
        for _ in range(TIMES):
            before, begin = kubelets.sent, time.perf_counter()
            answer = browser.post(f"{path}/logs/read", asked, content_type="application/json").json()
            opened.append(time.perf_counter() - begin)
            sent.append(kubelets.sent - before)
            assert not answer["error"], answer["error"]
            assert len(answer["pieces"]) == TASKS
            assert all(f"line {LINES - 1} " in piece["text"] for piece in answer["pieces"])
        for _ in range(TIMES):
            begin = time.perf_counter()
            [found] = browser.get(f"{path}/logs/search?task=worker-7&q=line {LINES - 1} ").json()["tasks"]
            looked.append(time.perf_counter() - begin)
            assert (found["total"], found["lines"]) == (1, LINES), found
        # Its pods make room for the next part; copies of all they wrote would take the disk for minutes.
        kubelets.lines = stamped(10, LENGTH)
        api_of(portal, tenants).send("POST", f"/appcodes/{code}/clusters/{name}/disable", {})
        until(lambda: Run.objects.filter(pk=run.pk, gone=True).exists(), 120)
    size = LINES * LENGTH / MB
    of = f"Kubernetes: the logs of {TASKS} tasks, {size:.0f} MB each"
    return [
        Result(f"{of}: opened → their last lines, median of {TIMES}", statistics.median(opened), "s", 1),
        Result(f"{of}: opened, read of the API server, most", max(sent) / MB, "MB", 2),
        Result(
            f"Kubernetes: a search in one log of {size:.0f} MB, median of {TIMES}", statistics.median(looked), "s", 2
        ),
    ]


def _made(portal: Portal, tenants: Seeded, code: str, name: str, command: str, tasks: int) -> str:
    """Makes a cluster of so many tasks; the appcode, for its address."""
    roles = {"master": {"flavor": "cpu"}} | ({"worker": {"flavor": "cpu", "count": tasks - 1}} if tasks > 1 else {})
    spec = {"image": "bench", "command": command, "retries": 0, "roles": roles}
    manifest = {"kind": "cluster", "metadata": {"name": name}, "spec": spec}
    api_of(portal, tenants).send("POST", f"/appcodes/{code}/clusters", manifest)
    return code
