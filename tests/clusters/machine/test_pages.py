"""What people and programs see of it. These tests write the samples in the place of a cloud: no GPU was measured for them."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from clusters.clouds.drivers.base import GpuNow, Sample, Samples, SamplesTasks
from clusters.clouds.models import CloudState
from clusters.cluster.pages.machine import KINDS
from clusters.machine.sampler import Sampler
from clusters.runs.models import Cluster, Run, Task

pytestmark = pytest.mark.django_db


class Told(SamplesTasks):
    """Tells what a test says."""

    name = "local"

    def __init__(self) -> None:
        self.told = Samples()

    def samples(self) -> Samples:
        return self.told


def sampled(run: Run, tasks: Sequence[tuple[str, int]], minutes: int, use: Callable[[int, float], Sample]) -> None:
    """Samples every minute until now; `use`: what the n-th of these tasks has used after that many seconds."""
    Task.objects.bulk_create(
        Task(run=run, role=role, index=index, uid=f"{run.pk}-{n}", phase="Running")
        for n, (role, index) in enumerate(tasks)
    )
    source: Any = Told()
    sampler, now = Sampler(source), time.time()
    for minute in range(minutes + 1):
        at = now - 60 * (minutes - minute)
        items = tuple(use(n, 60.0 * minute) for n in range(len(tasks)))
        source.told = Samples(
            tuple(Sample(**{**vars(each), "uid": f"{run.pk}-{n}", "at": at}) for n, each in enumerate(items)),
            {"network": "Nobody counts the network here.", "gpu": "No GPU is measured here."},
        )
        sampler.tick(at)


@contextmanager
def counted() -> Iterator[list[int]]:
    found: list[int] = []
    with CaptureQueriesContext(connection) as queries:
        yield found
    found.append(len(queries))


def words(page: bytes) -> str:
    return " ".join(re.sub(r"<[^>]*>", " ", page.decode()).split())


def test_gpus_that_do_nothing_are_named_with_what_to_do(make_cluster: Any, people: Any, as_person: Any) -> None:
    made: Cluster = make_cluster(phase="Running", workers=2)
    run = Run.objects.get(cluster=made)
    Run.objects.filter(pk=run.pk).update(gpus=4)

    def use(n: int, seconds: float) -> Sample:
        # The first task has waited for the second for ten minutes.
        percent = 90.0 if n or seconds < 120 else 1.0
        gpus = GpuNow("2", 80.0, 1 << 30), GpuNow("3", percent, 3 << 30)
        return Sample("", 0, cpu_seconds=1.5 * seconds, memory_bytes=3 << 30, written=int(seconds * 2e6), gpus=gpus)

    sampled(run, [("worker", 0), ("worker", 1)], 13, use)
    page = as_person(people.alice).get("/clusters/ops-demo/demo/machine")
    text = words(page.content)
    assert "GPU 3 of worker-0 has been idle for 12 min" in text
    assert "worker-1 has" not in text
    assert "re-deploy it with fewer GPUs" in text
    assert 'href="/clusters/ops-demo/demo/change"' in page.content.decode()
    assert "GPU 63 %" in text
    assert "40 to 85 in 2 tasks" in text
    assert "GPU memory 4 GiB" in text
    assert "CPU 1.5 of " in text
    assert "Written to disk 2 MB/s" in text
    # What never was, or is not measured, is no figure; why it is not stands below.
    assert "Read from disk" not in text
    assert "Nobody counts the network here." in text
    assert "No GPU is measured here." not in text
    viewers = words(as_person(people.victor).get("/clusters/ops-demo/demo/machine").content)
    assert "ask its owner for fewer GPUs" in viewers
    assert CloudState.objects.get(name="local").unmeasured["gpu"]

    said = (
        as_person(people.victor).get("/api/v1/appcodes/ops-demo/clusters/demo/runs/1/machine?tasks=worker-0,all").json()
    )
    first, second = said["tasks"]
    assert [gpu["idleSince"] is None for gpu in (*first["gpus"], *second["gpus"])] == [True, False, True, True]
    assert (first["isNow"], first["now"]["gpuPercent"], first["peak"]["gpuPercent"]) == (True, 40.5, 85)
    assert first["mean"]["cpuCores"] == pytest.approx(1.5)
    assert [each["task"] for each in said["curves"]] == ["worker-0", None]
    one, whole = said["curves"]
    assert len(one["times"]) == len(one["mean"]["gpuPercent"]) == 13
    assert (whole["low"]["gpuPercent"][-1], whole["high"]["gpuPercent"][-1]) == (40.5, 85)
    assert said["notes"] == ["Nobody counts the network here."]

    Run.objects.filter(pk=run.pk).update(phase="Succeeded", gone=True)
    ended = words(as_person(people.alice).get("/clusters/ops-demo/demo/machine").content)
    assert "What the machine did" in ended
    assert "On average over the run." in ended


@pytest.mark.parametrize(("minutes", "has_lines"), [(1, False), (13, True)])
def test_a_run_that_does_nothing_says_zero_once_and_names_only_lines_that_are_there(
    make_cluster: Any, people: Any, as_person: Any, minutes: int, has_lines: bool
) -> None:
    run = Run.objects.get(cluster=make_cluster(phase="Running", workers=0))
    sampled(run, [("master", 0)], minutes, lambda n, seconds: Sample("", 0, cpu_seconds=0.0, memory_bytes=1 << 30))
    page = as_person(people.alice).get("/clusters/ops-demo/demo/machine").content
    text = words(page)
    assert re.search(r"CPU 0 of [\d.]+ cores", text)
    assert "at most 0" not in text
    assert "at most 1" in text, "of memory"
    assert ("<path" in page.decode(), "the lines show the whole run" in text) == (has_lines, has_lines)
    charts = as_person(people.alice).get("/clusters/ops-demo/demo/metrics/machine").content.decode()
    assert ("data-plot=" in charts, "measured only once" in charts) == (has_lines, not has_lines), "no charts of a dot"
    found = as_person(people.alice).get("/clusters/ops-demo/demo/metrics/machine?find=memory").content.decode()
    assert ("<h3>Memory" in found, "<h3>CPU" in found) == (has_lines, False)


def test_many_tasks_are_a_mean_and_extremes_or_the_ten_busiest_in_as_many_queries_as_one(
    make_cluster: Any, people: Any, as_person: Any
) -> None:
    browser, numbers = as_person(people.alice), list[list[int]]()
    addresses = [
        f"/clusters/ops-demo/{{}}/{part}" for part in ("machine", "metrics/machine", "metrics/machine?show=busiest")
    ]
    addresses.append("/api/v1/appcodes/ops-demo/clusters/{}/runs/1/machine")
    for name, count in (("few", 2), ("many", 60)):
        run = Run.objects.get(cluster=make_cluster(name, phase="Running", workers=2))
        sampled(
            run,
            [("worker", n) for n in range(count)],
            3,
            lambda n, seconds: Sample("", 0, cpu_seconds=n * seconds / 10, memory_bytes=n << 20),
        )
        found = []
        for address in addresses:
            browser.get(address.format(name))
            with counted() as queries:
                assert browser.get(address.format(name)).status_code == 200
            found += queries
        numbers.append(found)
    assert numbers[0] == numbers[1]

    def lines(query: str) -> list[list[str]]:
        page = browser.get(f"/clusters/ops-demo/many/metrics/machine{query}").content.decode()
        charts = re.findall(r'data-plot="([^"]*)"', page)
        return [[line["label"] for line in json.loads(chart.replace("&quot;", '"'))["lines"]] for chart in charts]

    assert lines("") == [["mean and range of 60 tasks"]] * 2
    assert lines("?show=busiest") == [[f"worker-{n}" for n in range(59, 49, -1)]] * 2
    assert lines("?show=worker-3") == [["worker-3"]] * 2
    # Other runs of the cluster are laid over it, as over the numbers of its program.
    first = Run.objects.get(cluster__name="many")
    second = Run.objects.create(
        cluster=first.cluster, number=2, spec=first.spec, resources={}, gpus=0, phase="Succeeded"
    )
    sampled(second, [("worker", 0)], 2, lambda n, seconds: Sample("", 0, cpu_seconds=seconds, memory_bytes=1 << 20))
    assert lines("?with=2") == [["run 1", "run 2"]] * 2


@pytest.mark.parametrize(("value", "text"), [(None, "–"), (51.0, "0"), (1_234_567.0, "1.2"), (2.5e8, "250")])
def test_traffic_is_said_in_numbers_that_people_read(value: float | None, text: str) -> None:
    assert {kind.quantity: kind for kind in KINDS}["read"].text(value) == text
