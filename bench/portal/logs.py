"""What readers of logs wait for: a search in a long log on this machine, and the log tab of 100 tasks on Kubernetes.

One server (tests/kube/kubelet.py) plays all kubelets and counts the bytes that the API server reads from it and passes on.
"""

from __future__ import annotations

import json
import statistics
import time

from bench.portal.measures import MB, api_of, manifest, signed_in, until
from bench.results import Result
from bench.seed import Seeded
from bench.sizes import size
from clusters.runs.models import Run
from tests.kube.kubelet import played, stamped
from tests.kube.plane import Plane
from tests.running import Portal

TASKS, LINES, LENGTH = size(100, 2), size(100_000, 100), 100
SEARCHED, TIMES = size(1_000_000, 1000), size(5, 1)


def searching(portal: Portal, tenants: Seeded) -> list[Result]:
    """the search in a log of 1,000,000 lines"""
    name, command = "long-log", f"seq -f 'step %.0f: loss 0.123 accuracy 0.987' {SEARCHED}"
    code = tenants.codes[0]
    body = manifest(name, {"master": 1}, command, gpus=False)
    api_of(portal, tenants).send("POST", f"/appcodes/{code}/clusters", body)
    path = f"/clusters/{code}/{name}"
    until(lambda: Run.objects.filter(cluster__name=name, phase="Succeeded").exists(), 300)
    browser, took = signed_in(tenants.root), []
    for n in range(TIMES):
        # The match is near the end, so the search reads all lines.
        begin = time.perf_counter()
        [found] = browser.get(f"{path}/logs/search?q=step {SEARCHED - n}:").json()["tasks"]
        took.append(time.perf_counter() - begin)
        assert (found["total"], found["lines"]) == (1, SEARCHED), found
    return [Result(f"a search in a log of {SEARCHED:,} lines, median of {TIMES}", statistics.median(took), "s", 2)]


def tailing(portal: Portal, tenants: Seeded, plane: Plane, code: str) -> list[Result]:
    """Measures the log tab of TASKS tasks on Kubernetes: its last lines, and a search in one task's log."""
    name = "long-logs"
    path = f"/clusters/{code}/{name}"
    body = manifest(name, {"master": 1, "worker": TASKS - 1}, "sleep 1000", gpus=False)
    api_of(portal, tenants).send("POST", f"/appcodes/{code}/clusters", body)
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
            [found] = browser.get(f"{path}/logs/search?task=worker-0&q=line {LINES - 1} ").json()["tasks"]
            looked.append(time.perf_counter() - begin)
            assert (found["total"], found["lines"]) == (1, LINES), found
        # The pods make room for the next part. Shorten their logs first: copying the full ones would take the disk for minutes.
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
