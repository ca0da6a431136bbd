"""What it costs to know what tasks do: samples of 100 tasks on this machine, and pages about 1,000 tasks."""

from __future__ import annotations

import datetime as dt
import json
import math
import time
from itertools import count
from typing import Any

import psutil
from django.db import connection
from django.utils import timezone

from bench.idle import cpu
from bench.portal.measures import api_of, manifest, signed_in, until
from bench.results import Result, quantile
from bench.seed import Seeded
from bench.sizes import size
from bench.web import one_by_one
from clusters.catalog.models import Flavor
from clusters.clouds.registry import cloud
from clusters.machine import series
from clusters.machine.models import MachineBlock, MachineSeries
from clusters.machine.rates import QUANTITIES, Step
from clusters.machine.sampler import Known, Sampler
from clusters.runs.models import Run
from tests.running import Portal

TASKS, TICKS = size(100, 2), size(20, 2)
MANY, LOOKS = size(1000, 12), size(50, 2)
# The highest share of a core for 100 tasks, and seconds for a page about 1,000.
PERCENT, SECONDS = 0.5, 0.3


def sampling(portal: Portal, tenants: Seeded) -> list[Result]:
    """samples of 100 tasks on this machine"""
    assert portal.process is not None
    name, code = "sampled", tenants.codes[0]
    path = f"/appcodes/{code}/clusters"
    # Small enough for 100 of them on any machine.
    Flavor.objects.create(name="tiny", title="Tiny", cpu_milli=10, memory_mb=16)
    body: Any = manifest(name, {"worker": TASKS - 1, "master": 1}, "exec sleep 600", gpus=False)
    for role in body["spec"]["roles"].values():
        role["flavor"] = "tiny"
    api_of(portal, tenants).send("POST", path, body)
    until(lambda: Run.objects.filter(cluster__name=name, phase="Running").exists(), 120)
    sampler = Sampler(cloud("local"))
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        backend = psutil.Process(cursor.fetchone()[0])

    def spent() -> float:
        """Processor time of this process, of its PostgreSQL backend, and of the node agent, which does nothing else meanwhile."""
        times = backend.cpu_times()
        own = time.process_time() + times.user + times.system
        return own + cpu(portal.process.pid, "clusters.clouds.drivers.local.agent.agent")  # type: ignore[union-attr]

    for _ in range(2):
        assert sampler.tick(time.time()) >= TASKS
    before = spent()
    for _ in range(TICKS):
        sampler.tick(time.time())
    each = (spent() - before) / TICKS
    api_of(portal, tenants).send("POST", f"{path}/{name}/disable")
    until(lambda: Run.objects.filter(cluster__name=name, phase="Stopped").exists(), 120)
    share = each / series.STEP * 100
    return [Result(f"Samples of {TASKS} tasks, every {series.STEP} s", share, "% of a core", PERCENT)]


def pages_of_many(portal: Portal, tenants: Seeded) -> list[Result]:
    """what 1,000 tasks did in a day, on Overview and Metrics"""
    run = (
        Run.objects.filter(cluster__appcode__code=tenants.codes[0], current_of__isnull=False)
        .select_related("cluster")
        .first()
    )
    assert run is not None
    fill(run, MANY)
    browser, path, found = signed_in(tenants.root), f"/clusters/{tenants.codes[0]}/{run.cluster.name}", []
    parts = ("machine", "Overview"), ("metrics/machine", "Metrics"), ("metrics/machine?show=busiest", "the ten busiest")
    for part, what in parts:
        page = browser.get(f"{path}/{part}")
        assert page.status_code == 200
        assert b"CPU" in page.content
        times = one_by_one(LOOKS, lambda part=part: browser.get(f"{path}/{part}"))  # type: ignore[misc]
        found.append(Result(f"What {MANY:,} tasks did in a day: {what}, p99", quantile(times, 0.99), "s", SECONDS))
    return found


def fill(run: Run, tasks: int) -> None:
    """Samples of a day, every 10 s, of that many tasks of a run."""
    now = timezone.now()
    begin = int(now.timestamp() // 600 - 144) * 600
    nothing = (math.nan,) * (len(QUANTITIES) - 4)
    steps = [Step(10, (50 + 50 * math.sin(n / 9), 2.0**34, 1.5, 2.0**31, *nothing)) for n in range(60)]
    lines = {
        True: b"".join(series.whole(10 * n, [each]) for n, each in enumerate(steps, 1)),
        False: b"".join(series.fine(10 * n, each) for n, each in enumerate(steps, 1)),
    }
    key, rows = count(), []
    for role, index in [("", 0), *(("worker", n) for n in range(tasks))]:
        known = Known((run.pk, role, index, 0), begin)
        known.add(Step(86_400, (next(key) % 100, *steps[0].values[1:])))
        rows.append(MachineSeries(run=run, role=role, index=index, at=now, state=json.loads(known.state(steps[0]))))
    MachineSeries.objects.filter(run=run).delete()
    MachineSeries.objects.bulk_create(rows)
    for n in range(144):
        start = dt.datetime.fromtimestamp(begin + 600 * n, dt.UTC)
        MachineBlock.objects.bulk_create(
            MachineBlock(series=each, step=10, begin=start, data=lines[not each.role]) for each in rows
        )


PARTS = (sampling, pages_of_many)
