"""The portal's own loop with the Kubernetes cloud: from an action to pods, phases and usage, until nothing is left."""

from __future__ import annotations

import secrets
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from clusters.clouds.drivers.base import Batch, WatchExpired
from clusters.clouds.drivers.kubernetes.cloud import KubernetesCloud
from clusters.clouds.drivers.kubernetes.render import names
from tests.kube.following import cloud_of, registered
from tests.kube.plane import Plane

pytestmark = [pytest.mark.kube, pytest.mark.django_db(transaction=True)]


class Loop:
    """Worker and controller in one thread, step by step, as in tests/clusters."""

    def __init__(self, plane: Plane, cloud: KubernetesCloud) -> None:
        self.plane = plane
        self.cloud = cloud
        self.batches: Iterator[Batch] = iter(())

    def restart(self) -> None:
        """Replaces the controller by a new one that knows only the database."""
        self.cloud = cloud_of(self.plane, self.cloud._settings.portal)
        self.batches = iter(())

    def work(self) -> None:
        from django.utils.timezone import now

        from clusters.runs import quota, reconcile
        from clusters.runs.models import Run
        from clusters.runs.placing import places

        for appcode_id in list(Run.objects.filter(gone=False).values_list("cluster__appcode", flat=True).distinct()):
            quota.admit_waiting(appcode_id)
        places.place("kubernetes")
        for run_id in list(Run.objects.filter(reconcile.unsettled(now())).values_list("pk", flat=True)):
            reconcile.reconcile(run_id)

    def listen(self) -> None:
        from django.utils.timezone import now

        from clusters.clouds.models import CloudState
        from clusters.runs.status.observe import apply_batch, apply_listing, save_capacity

        try:
            batch = next(self.batches)
        except (StopIteration, WatchExpired):
            asked_at = now()
            batch = self.cloud.list()
            apply_listing("kubernetes", batch, asked_at)
            position = CloudState.objects.get(name="kubernetes").position
            self.batches = self.cloud.watch(position)
        else:
            apply_batch("kubernetes", batch)
        self.cloud.acknowledge(batch.items)
        save_capacity("kubernetes", self.cloud.capacity())

    def until(self, happened: Callable[[], object], seconds: float = 60.0) -> None:
        from clusters.runs.models import Run, Task

        deadline = time.monotonic() + seconds
        self.work()
        while not happened():
            assert time.monotonic() < deadline, [*Run.objects.values("pk", "phase", "message"), *Task.objects.values()]
            self.listen()
            self.work()

    def until_phase(self, cluster: Any, *phases: str) -> Any:
        from clusters.runs.models import Run

        self.until(lambda: Run.objects.get(current_of=cluster).phase in phases)
        return Run.objects.get(current_of=cluster)

    def end(self, run: Any, role: str, code: int) -> None:
        self.plane.end_pods("ops", names.selector(portal=self.cloud._settings.portal, run_id=run.pk, role=role), code)


@pytest.fixture
def loop(plane: Plane, people: Any) -> Iterator[Loop]:
    """Runs everything on the registered cluster. Workers create a client from its row, as other processes do."""
    from clusters.catalog.models import Flavor, Image
    from clusters.runs.models import Run

    Flavor.objects.create(name="small", title="Small", cpu_milli=100, memory_mb=128)
    Flavor.objects.create(name="one-gpu", title="Middle + 1 GPU", cpu_milli=100, memory_mb=128, gpus=1)
    Image.objects.create(
        name="tensorflow", title="TensorFlow", environment=sys.prefix, container="example/tensorflow:2.21"
    )
    portal = f"loop-{secrets.token_hex(4)}"
    registered(plane, "kubernetes", portal=portal, is_default=True)
    loop = Loop(plane, cloud_of(plane, portal))
    yield loop
    Run.objects.filter(gone=False).update(desired="ended", release_asked_at=None)
    loop.until(lambda: not Run.objects.filter(gone=False).exists())


@pytest.fixture
def create(people: Any) -> Callable[..., Any]:
    from clusters.cluster.actions import create_cluster
    from clusters.manifest.cluster import ClusterManifest

    def make(**spec: Any) -> Any:
        counts = {"master": 1, "ps": spec.pop("ps", 0), "worker": spec.pop("workers", 0)}
        roles = {
            role: {"flavor": "small" if role == "ps" else "one-gpu", "count": count} for role, count in counts.items()
        }
        roles = spec.pop("roles", roles)
        body = {"image": "tensorflow", "command": "python train.py", "roles": roles, **spec}
        document = {"kind": "cluster", "metadata": {"name": "mnist", "appcode": "ops-demo"}, "spec": body}
        return create_cluster(ClusterManifest.model_validate(document), acting_user=people.bob)

    return make


def test_a_run_succeeds_is_metered_and_leaves_nothing(plane: Plane, loop: Loop, create: Callable[..., Any]) -> None:
    from billing.models import UsageSegment

    cluster = create(ps=1, workers=2)
    run = loop.until_phase(cluster, "Running")
    assert {role: facts["ready"] for role, facts in run.roles.items()} == {"master": 1, "ps": 1, "worker": 2}
    loop.end(run, "worker", 0)
    loop.end(run, "master", 0)
    run = loop.until_phase(cluster, "Succeeded", "Failed")
    assert (run.phase, run.message) == ("Succeeded", "The master has finished.")
    segments = list(UsageSegment.objects.filter(consumer=f"run {run.pk}"))
    assert len(segments) == 4
    whole = run.whole_at.replace(microsecond=0)
    seen = {task.uid: (max(task.began_at, whole), task.finished_at) for task in run.tasks.all()}
    assert {each.uid: (each.started, each.ended) for each in segments} == seen
    path = "/api/v1/namespaces/ops/configmaps"
    label = names.selector(run_id=run.pk, portal=loop.cloud._settings.portal)
    plane.until(path, lambda found: not found, labelSelector=label)


def test_tasks_that_take_turns_hold_the_gpus_of_those_that_run(loop: Loop, create: Callable[..., Any]) -> None:
    """Five tasks with one GPU each, two at a time, in an appcode with two GPUs: each runs and is metered."""
    from billing.models import UsageSegment
    from clusters.runs.models import Task
    from portal.models import Appcode

    Appcode.objects.update(gpu_quota=2)
    roles = {"worker": {"flavor": "one-gpu", "count": 5, "atOnce": 2}}
    run = loop.until_phase(create(framework="parallel", roles=roles, retries=0), "Running")
    assert run.gpus == 2
    for turn in range(3):
        live = Task.objects.filter(run=run, phase="Running")
        expected = {2 * turn, 2 * turn + 1} & set(range(5))
        loop.until(lambda live=live, expected=expected: set(live.values_list("index", flat=True)) == expected)
        if turn < 2:
            run.refresh_from_db()
            assert (run.phase, run.reason) == ("Running", "")
        loop.end(run, "worker", 0)
    loop.until(lambda: type(run).objects.get(pk=run.pk).phase == "Succeeded")
    assert UsageSegment.objects.filter(consumer=f"run {run.pk}").count() == 5


def test_a_failure_is_retried_and_then_ends_the_run(loop: Loop, create: Callable[..., Any]) -> None:
    from clusters.runs.models import Task

    cluster = create(retries=1)
    run = loop.until_phase(cluster, "Running")
    loop.end(run, "master", 7)
    loop.until(lambda: Task.objects.filter(run=run, attempt=1, phase="Running").exists())
    loop.end(run, "master", 7)
    run = loop.until_phase(cluster, "Succeeded", "Failed")
    assert (run.phase, run.reason) == ("Failed", "TaskFailed")
    assert "master-0 failed twice (exit code 7)" in run.message
    assert list(run.tasks.order_by("attempt").values_list("attempt", "exit_code")) == [(0, 7), (1, 7)]


def test_a_controller_that_dies_between_writing_and_acknowledging_loses_nothing(
    plane: Plane, loop: Loop, create: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    from clusters.cluster import actions
    from clusters.runs.models import Task

    cluster = create(workers=1)
    run = loop.until_phase(cluster, "Running")
    with monkeypatch.context() as patch:
        patch.setattr(loop.cloud, "acknowledge", lambda items: None)
        actions.disable(cluster, acting_user=run.created_by)
        loop.until(lambda: Task.objects.filter(run=run, phase="Failed").count() == 2)
    loop.restart()
    run = loop.until_phase(cluster, "Stopped")
    assert run.gone
    assert Task.objects.filter(run=run).count() == 2


def test_a_service_counts_its_pods_also_across_controllers(
    plane: Plane, loop: Loop, create: Callable[..., Any], people: Any
) -> None:
    from clusters.cluster import actions
    from clusters.runs.models import Task

    cluster = create(mode="service")
    run = loop.until_phase(cluster, "Running")
    label = names.selector(run_id=run.pk, portal=loop.cloud._settings.portal)
    for attempt in (1, 2):
        path = "/api/v1/namespaces/ops/pods"
        pods = plane.request("GET", path, labelSelector=label)["items"]
        alive = [pod for pod in pods if "deletionTimestamp" not in pod["metadata"]]
        plane.request("DELETE", f"{path}/{alive[0]['metadata']['name']}")
        loop.until(lambda attempt=attempt: Task.objects.filter(run=run, attempt=attempt, phase="Running").exists())
        loop.until(lambda attempt=attempt: Task.objects.filter(run=run, phase="Failed").count() == attempt)
        if attempt == 1:
            loop.restart()
            loop.listen()
    actions.disable(cluster, acting_user=people.bob)
    loop.until_phase(cluster, "Stopped")


def test_a_namespace_deleted_behind_our_back_ends_its_runs(
    plane: Plane, loop: Loop, create: Callable[..., Any]
) -> None:
    from portal.models import OrgNode

    # A namespace of its own, because the test deletes it.
    space = f"line-{secrets.token_hex(4)}"
    OrgNode.objects.filter(namespace="ops").update(namespace=space)
    cluster = create(workers=1)
    assert loop.until_phase(cluster, "Running").namespace == space
    plane.request("DELETE", f"/api/v1/namespaces/{space}")
    run = loop.until_phase(cluster, "Failed")
    assert (run.reason, run.message) == (
        "Lost",
        f"Somebody deleted namespace {space} of its Kubernetes cluster.",
    )
    assert not run.tasks.filter(phase__in=["Pending", "Running"]).exists()
    plane.until("/api/v1/namespaces", lambda found: space not in found, seconds=60)
