"""Runs start with all of their tasks or not at all: on a real control plane with 13 nodes of 8 GPUs, beside other software."""

from __future__ import annotations

import datetime as dt
import secrets
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from tests.kube.following import portal_kubeconfig
from tests.kube.loops import Loops
from tests.kube.plane import Plane
from tests.kube.test_faults import end_all
from tests.kube.test_fit import other_software

pytestmark = [pytest.mark.kube, pytest.mark.django_db(transaction=True)]


@pytest.fixture
def loops(plane: Plane, people: Any) -> Iterator[Loops]:
    from clusters.catalog.models import Flavor
    from portal.models import Appcode

    loops = Loops(plane, f"gangs-{secrets.token_hex(4)}", yaml.safe_load(portal_kubeconfig(plane).read_text()))
    loops.catalogue()
    Flavor.objects.create(name="eight-gpus", title="8 GPUs", cpu_milli=100, memory_mb=128, gpus=8)
    Appcode.objects.update(gpu_quota=10_000)
    loops.start()
    try:
        yield loops
        end_all(loops)  # Their pods would take the GPUs of the next test.
    finally:
        loops.stop()


class HalfGangs(threading.Thread):
    """Adds up for how long runs of the portal had nodes for some of their tasks while kube-scheduler found none for another. On a
    busy machine the scheduler takes its time, too; that says nothing of the places that the portal gives."""

    def __init__(self, loops: Loops, runs: set[int]) -> None:
        super().__init__(daemon=True)
        self.loops, self.runs = loops, runs
        self.seconds, self.longest, self.looks = 0.0, 0.0, 0
        self._half: dict[str, float] = {}
        self.done = threading.Event()

    def run(self) -> None:
        from clusters.clouds.drivers.kubernetes.render import names

        selector = f"{names.PORTAL}={self.loops.portal}"
        before = time.monotonic()
        while not self.done.wait(0.2):
            pods = self.loops.plane.request("GET", "/api/v1/pods", labelSelector=selector)["items"]
            now = time.monotonic()
            bound, shut = set[str](), set[str]()
            for pod in pods:
                run = pod["metadata"]["labels"][names.RUN_ID]
                if "deletionTimestamp" in pod["metadata"] or int(run) not in self.runs:
                    continue
                if pod["spec"].get("nodeName"):
                    bound.add(run)
                elif any(each.get("reason") == "Unschedulable" for each in pod["status"].get("conditions", ())):
                    shut.add(run)
            half = bound & shut
            for run in half:
                self._half[run] = self._half.get(run, 0.0) + now - before
            self.seconds += len(half) * (now - before)
            self.longest = max(self.longest, *self._half.values(), 0.0)
            self._half = {run: held for run, held in self._half.items() if run in half}
            self.looks, before = self.looks + 1, now


def test_of_two_gangs_one_runs_and_of_the_other_nothing_exists_until_it_can_run_whole(
    plane: Plane, loops: Loops, people: Any, client: Any
) -> None:
    from billing.models import UsageSegment
    from tests.api.client import api_of

    # While the first is bound, the second cannot count on the rest of the node that it has to itself then.
    waits = "It needs 65 GPUs; 39 of 104 are free. It starts as soon as enough are free."
    first, second = loops.create(people, "first", workers=64), loops.create(people, "second", workers=64)
    for _ in range(2):
        running = loops.until_running(first)
        loops.until(lambda run=second: loops.run(run).message == waits)  # type: ignore[misc]
        waiting = loops.run(second)
        assert loops.left_of(waiting) == []
        assert (waiting.phase, waiting.reason) == ("Queued", "WaitingForGPUs")
        answer = api_of(people.bob).get(f"/appcodes/ops-demo/clusters/{second.name}")[1]
        assert (answer["status"]["phase"], answer["status"]["message"]) == ("Queued", waiting.message)
        client.force_login(people.bob)
        assert waiting.message in client.get("/queue").content.decode()
        assert not UsageSegment.objects.filter(consumer=f"run {waiting.pk}").exists()
        loops.disable(people, first)
        loops.until_running(second)
        loops.until_nothing_is_left(running)
        first, second = second, loops.create(people, f"third-{secrets.token_hex(2)}", workers=64)
    loops.disable(people, first)
    loops.disable(people, second)


def test_many_gangs_that_compete_are_never_half_placed(plane: Plane, loops: Loops, people: Any) -> None:
    from clusters.runs.models import Run

    sizes = [
        (40, "one-gpu"),
        (6, "eight-gpus"),
        (30, "one-gpu"),
        (3, "eight-gpus"),
        (65, "one-gpu"),
        (1, "eight-gpus"),
    ] * 2
    clusters = [
        loops.create(people, f"gang-{n}", workers=size - 1, flavor=flavor) for n, (size, flavor) in enumerate(sizes)
    ]
    watch = HalfGangs(loops, {loops.run(cluster).pk for cluster in clusters})
    watch.start()
    left = list(clusters)
    try:
        while left:
            loops.until(lambda: any(loops.run(each).phase == "Running" for each in left), 120)
            for each in [each for each in left if loops.run(each).phase == "Running"]:
                run = loops.until_running(each, seconds=120)
                assert run.times_given_back == 0
                left.remove(each)
                loops.disable(people, each)
        loops.until(lambda: not Run.objects.filter(gone=False).exists(), 120)
    finally:
        watch.done.set()
        watch.join()
    print(f"half gangs: {watch.seconds:.1f} gang-seconds, at most {watch.longest:.1f} s, in {watch.looks} looks")
    assert watch.looks > 20
    # What a node had before may leave it a moment after it is gone from the portal's sight.
    assert watch.longest < 5


def test_a_gang_from_which_other_software_takes_a_gpu_gives_all_back_and_starts_when_it_can(
    plane: Plane, loops: Loops, people: Any, namespace: str
) -> None:
    from billing.models import UsageSegment
    from clusters.clouds.models import CloudState
    from portal.models import Event

    node = min(plane.nodes())
    loops.until(lambda: CloudState.objects.filter(capacity__nodes__12__isnull=False).exists())
    loops.stop_controller()  # It would see the pod before the decision.
    other_software(plane, namespace, "thief", node, 1, 1)
    gang = loops.create(people, "gang", workers=103)
    loops.until(lambda: loops.run(gang).applied_at)
    loops.start_controller()
    loops.until(lambda: Event.objects.filter(verb="run.given_back").exists(), 60)
    run = loops.until_phase(gang, "Queued")
    loops.until(lambda: loops.left_of(run) == [])
    loops.until(
        lambda: (
            loops.run(gang).message == "It needs 104 GPUs; 103 of 104 are free. It starts as soon as enough are free."
        ),
        60,
    )
    assert not UsageSegment.objects.filter(consumer=f"run {run.pk}").exists(), (
        "103 of 104 GPUs were held, and cost nothing"
    )
    plane.request("DELETE", f"/api/v1/namespaces/{namespace}/pods/thief", gracePeriodSeconds="0")
    run = loops.until_running(gang, seconds=90)
    assert run.times_given_back == 1
    loops.check_usage(run)
    loops.disable(people, gang)
    loops.until_nothing_is_left(run)


def test_a_task_whose_node_is_drained_starts_elsewhere_and_a_gang_restarts_whole(
    plane: Plane, loops: Loops, people: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from clusters.runs.placing import places
    from portal.models import Event

    # Replaces a wait of five minutes.
    for patience in ("PATIENCE", "REPAIR"):
        monkeypatch.setattr(places, patience, dt.timedelta(seconds=15))
    single, gang = loops.create(people, "single"), loops.create(people, "gang", workers=2, flavor="eight-gpus")
    runs = [loops.until_running(each) for each in (single, gang)]
    for cluster, run in zip((single, gang), runs, strict=True):
        node, uids = min(task.node for task in run.tasks.all()), set(run.tasks.values_list("uid", flat=True))
        drain(plane, node)
        loops.until(
            lambda name=cluster.name: Event.objects.filter(verb="run.given_back", object__contains=name).exists(), 60
        )  # type: ignore[misc]
        again = loops.until_running(cluster, seconds=60)
        assert node not in {task.node for task in again.tasks.all()}
        assert not uids & set(again.tasks.values_list("uid", flat=True)), "all of its tasks began together"
        loops.disable(people, cluster)


def drain(plane: Plane, node: str) -> None:
    """As `kubectl drain` does: no new pods, and those there are evicted."""
    plane.request("PATCH", f"/api/v1/nodes/{node}", {"spec": {"unschedulable": True}})
    for pod in plane.request("GET", "/api/v1/pods", fieldSelector=f"spec.nodeName={node}")["items"]:
        where, name = pod["metadata"]["namespace"], pod["metadata"]["name"]
        eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name, "namespace": where}}
        plane.request("POST", f"/api/v1/namespaces/{where}/pods/{name}/eviction", eviction)


def test_a_namespace_quota_of_7_never_keeps_7_of_10_gpus(
    plane: Plane, loops: Loops, people: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from billing.models import UsageSegment
    from clusters.clouds.models import Cloud
    from clusters.runs.placing import places
    from portal.models import Event

    monkeypatch.setattr(places, "PATIENCE", dt.timedelta(seconds=12))
    row = Cloud.objects.get(name="kubernetes")
    row.settings["quota"] = {"requests.nvidia.com/gpu": "7"}
    row.revision += 1
    row.save()
    loops.stop_controller()
    loops.start_controller()
    gang = loops.create(people, "gang", workers=9)
    loops.until(lambda: Event.objects.filter(verb="run.given_back").exists(), 60)
    assert "quota" in Event.objects.get(verb="run.given_back").message
    loops.until(lambda: loops.left_of(loops.run(gang)) == [])
    assert not UsageSegment.objects.exists()
    loops.disable(people, gang)
    loops.until(lambda: loops.run(gang).gone)
    # The namespaces of the plane are those of other tests, too.
    row.settings["quota"] = {}
    row.revision += 1
    row.save()
    loops.stop_controller()
    for quota in plane.request("GET", "/api/v1/resourcequotas")["items"]:
        where = quota["metadata"]["namespace"]
        plane.request("DELETE", f"/api/v1/namespaces/{where}/resourcequotas/{quota['metadata']['name']}")
    loops.start_controller()
