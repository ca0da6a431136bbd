"""Objects that the portal cannot parse stop nothing: they are kept for people, without possible secrets, and the rest goes
on."""

from __future__ import annotations

import datetime as dt
import json
import secrets
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from django.test import Client

from clusters.clouds.drivers.base import TaskSeen
from clusters.clouds.drivers.kubernetes.render import names
from clusters.clouds.drivers.kubernetes.watch import follower
from clusters.clouds.drivers.kubernetes.watch.mirror import Mirror
from clusters.clouds.drivers.kubernetes.watch.quarantine import MOST, unreadable
from tests.kube.following import portal_kubeconfig
from tests.kube.loops import Loops
from tests.kube.plane import Object, Plane
from tests.kube.test_verdicts import ALIVE, ENDED, LEAVING, NOW, job, owner, pod

# Kubernetes accepts this year, but Python's datetime does not.
BEYOND = "0000-01-01T00:00:00Z"


@pytest.fixture
def loops(plane: Plane, people: Any) -> Iterator[Loops]:
    loops = Loops(plane, f"odd-{secrets.token_hex(4)}", yaml.safe_load(portal_kubeconfig(plane).read_text()))
    loops.catalogue()
    loops.start()
    yield loops
    loops.stop()


def strange(name: str, like: Object) -> Object:
    """Returns someone's pod with labels like ours (but of no role of the run) and our finalizer, which no node can run."""
    ours = {name: value for name, value in like["metadata"]["labels"].items() if name.startswith(names.PREFIX)}
    task = {
        "name": "task",
        "image": "x",
        "command": ["sh", "-c", "hunter2"],
        "env": [{"name": "KEY", "value": "hunter2"}],
    }
    return {
        "metadata": {
            "name": name,
            "labels": ours | {names.ROLE: "dancer"},
            "finalizers": [names.METERING],
            "annotations": {"note": "hunter2"},
        },
        "spec": {"schedulerName": "nobody", "securityContext": like["spec"]["securityContext"], "containers": [
            task | {"securityContext": like["spec"]["containers"][0]["securityContext"]}
        ]},
    }  # fmt: skip


def absurd(phase: str) -> Object:
    times = {"startedAt": BEYOND, "finishedAt": BEYOND, "exitCode": 1, "message": "hunter2"}
    status = {"name": "task", "image": "x", "imageID": "x", "ready": False, "restartCount": 0}
    return {"status": {"phase": phase, "containerStatuses": [status | {"state": {"terminated": times}}]}}


@pytest.mark.kube
@pytest.mark.django_db(transaction=True)
def test_a_pod_with_absurd_fields_in_a_real_watch(plane: Plane, loops: Loops, people: Any, client: Client) -> None:
    from billing.models import Quarantined
    from clusters.clouds.models import CloudState
    from clusters.runs.models import Run

    cluster = loops.create(people, workers=1, retries=0)
    run = loops.until_running(cluster)
    path = "/api/v1/namespaces/ops/pods"
    (master,) = [each for each in loops.pods(run) if each["metadata"]["labels"][names.ROLE] == "master"]
    plane.request("POST", path, strange("odd", master))
    plane.request("PATCH", f"{path}/odd/status", absurd("Running"))
    loops.until(lambda: Quarantined.objects.count() == 1)
    row = Quarantined.objects.get()
    assert row.cloud == "kubernetes"
    assert row.reason.startswith("Pod ops/odd is not understood: ValueError: ")
    assert BEYOND in row.raw
    assert "hunter2" not in row.raw
    assert json.loads(row.raw)["spec"]["containers"][0]["command"] == "(left out)"

    # Everything else goes on, also after a new listing.
    other = loops.until_running(loops.create(people, "other"))
    loops.stop_controller()
    loops.start_controller()
    loops.end(other, "master", 0)
    loops.until(lambda: Run.objects.get(pk=other.pk).phase == "Succeeded")
    assert Quarantined.objects.count() == 1
    assert CloudState.objects.get(name="kubernetes").trouble == ""

    # When it ends, its finalizer is removed, so that its owner can be deleted.
    plane.request("PATCH", f"{path}/odd/status", absurd("Failed"))
    loops.until(lambda: Quarantined.objects.count() == 2)
    plane.request("DELETE", f"{path}/odd", gracePeriodSeconds="0")
    plane.until(path, lambda found: "odd" not in found)

    client.force_login(people.root)
    page = client.get("/dashboard/reconciliation").content.decode()
    assert "Pod ops/odd is not understood" in page
    assert "Pod ops/odd, which has ended, is not understood" in page
    loops.disable(people, cluster)
    loops.until_phase(cluster, "Stopped")
    loops.until_nothing_is_left(run)
    loops.check_usage(run)


@pytest.mark.kube
@pytest.mark.django_db(transaction=True)
def test_a_task_whose_end_is_absurd_is_not_billed_any_more(plane: Plane, loops: Loops, people: Any) -> None:
    from django.utils.timezone import now

    from billing.models import UsageSegment

    run = loops.until_running(cluster := loops.create(people, workers=1, retries=1))
    (worker,) = [each for each in loops.pods(run) if each["metadata"]["labels"][names.ROLE] == "worker"]
    name, uid = worker["metadata"]["name"], worker["metadata"]["uid"]
    plane.request("PATCH", loops.path("Pod", run, f"{name}/status"), absurd("Failed"))
    loops.until(UsageSegment.objects.filter(uid=uid, ended__isnull=False).exists)
    at = now()
    segment = UsageSegment.objects.get(uid=uid)
    assert "end-estimated" in segment.flags
    assert segment.ended is not None
    assert at - dt.timedelta(seconds=15) < segment.ended <= at
    task = run.tasks.get(uid=uid)
    assert (task.phase, task.reason, task.finished_at.replace(microsecond=0)) == ("Failed", "Lost", segment.ended)
    # Kubernetes restarts it, and the watches work.
    loops.until_running(cluster)
    loops.disable(people, cluster)
    loops.until_phase(cluster, "Stopped")
    loops.until_nothing_is_left(run)
    assert UsageSegment.objects.get(uid=uid).ended == segment.ended
    assert not UsageSegment.objects.filter(ended=None).exists()


@pytest.mark.kube
@pytest.mark.django_db(transaction=True)
def test_a_pod_that_is_given_the_labels_of_another_run_gets_its_own_back(
    plane: Plane, loops: Loops, people: Any
) -> None:
    first, second = loops.create(people, "first"), loops.create(people, "second")
    run, other = loops.until_running(first), loops.until_running(second)
    (found,) = loops.pods(run)
    path = loops.path("Pod", run, found["metadata"]["name"])
    plane.request("PATCH", path, {"metadata": {"labels": {names.RUN_ID: str(other.pk)}}})
    loops.until(lambda: plane.request("GET", path)["metadata"]["labels"] == found["metadata"]["labels"])
    for cluster in (first, second):
        loops.until_running(cluster)
        loops.disable(people, cluster)
    for cluster, each in ((first, run), (second, other)):
        loops.until_phase(cluster, "Stopped")
        loops.until_nothing_is_left(each)
        loops.check_usage(each)
        assert each.tasks.count() == 1


def understood(mirror: Mirror, *news: tuple[str, tuple[str, Object]]) -> tuple[list[Any], list[str]]:
    """Returns the news that was parsed, and the news that was not."""
    unread: list[Any] = []
    told = [item for kind, (event, thing) in news for item in follower.understood(mirror, kind, event, thing, unread)]
    return told, [each.reason for each in unread]


def with_status(news: tuple[str, Object], **status: Any) -> tuple[str, Object]:
    kind, thing = news
    return kind, {**thing, "status": {**thing["status"], **status}}


def test_what_is_not_understood_is_as_if_it_had_not_come() -> None:
    mirror = Mirror()
    beyond = [{"type": "PodScheduled", "status": "True", "lastTransitionTime": "10000-01-01T00:00:00Z"}]
    odd = with_status(pod(16, "Running", deleted=False), conditions=beyond)
    told, unread = understood(mirror, ("ConfigMap", owner()), ("Job", job(10, "ADDED")), ("Pod", ALIVE))
    assert unread == []
    known = mirror.pods["uid-pod"]
    told, unread = understood(mirror, ("Pod", odd), ("Pod", odd))
    assert told == []
    assert len(unread) == 1
    assert mirror.pods["uid-pod"] == known
    told, unread = understood(mirror, ("Pod", LEAVING), ("Job", job(22)), ("Pod", ENDED))
    assert [item.phase for item in told if isinstance(item, TaskSeen)] == ["Running", "Failed"]
    assert unread == []
    # If its DELETED event cannot be parsed either, the pod still counts as gone, and so does its run.
    told, unread = understood(mirror, ("Pod", ("DELETED", with_status(ENDED, conditions=beyond)[1])))
    assert len(unread) == 1
    assert not mirror.pods
    assert not mirror.unread


ODD: Object = {"conditions": [{"type": "PodScheduled", "status": "True", "lastTransitionTime": BEYOND}]}


def ends(told: list[Any]) -> list[TaskSeen]:
    return [item for item in told if isinstance(item, TaskSeen) and item.phase != "Running"]


def followed(mirror: Mirror, *news: tuple[str, Object]) -> list[tuple[str, bool]]:
    """Returns uid and whether it is over for each pod that was not parsed."""
    unread: list[Any] = []
    for event, thing in news:
        assert follower.understood(mirror, "Pod", event, thing, unread) == []
    return [(each.uid, each.over) for each in unread]


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_a_pod_whose_end_is_not_understood_is_let_go(phase: str) -> None:
    """The next listing reports its end."""
    mirror = Mirror()
    understood(mirror, ("ConfigMap", owner()), ("Job", job(10, "ADDED")), ("Pod", ALIVE))
    odd = with_status(pod(30, "Failed", deleted=False), **ODD, phase=phase)
    assert followed(mirror, odd, odd) == [("uid-pod", True)]
    assert not mirror.pods
    assert mirror.unread_ends == {"uid-pod": ("ops", "pod")}
    assert followed(mirror, ("DELETED", with_status(ENDED, **ODD)[1])) == [("uid-pod", True)]
    assert not mirror.unread_ends


def test_an_end_that_was_understood_is_told_whatever_comes_after_it() -> None:
    mirror, odd = Mirror(), with_status(ENDED, **ODD)
    understood(mirror, ("ConfigMap", owner()), ("Job", job(10, "ADDED")), ("Pod", ALIVE), ("Pod", ENDED))
    assert followed(mirror, odd) == [("uid-pod", False)]
    told, _ = understood(mirror, ("Job", job(40)))
    (end,) = ends([*told, *mirror.decided(NOW)])
    assert end.finished_at == NOW - dt.timedelta(seconds=9)
    assert followed(mirror, odd) == []
    assert mirror.pods["uid-pod"].over
    assert not mirror.unread_ends


def test_a_pod_that_goes_without_a_word_that_is_understood_is_lost() -> None:
    mirror = Mirror()
    understood(mirror, ("ConfigMap", owner()), ("Job", job(10, "ADDED")), ("Pod", ALIVE))
    nothing: Object = {"phase": "Running", "containerStatuses": 7, **ODD}
    assert followed(mirror, ("DELETED", with_status(LEAVING, **nothing)[1])) == [("uid-pod", True)]
    assert not mirror.pods
    # A pod that only lost its labels lives on.
    mirror = Mirror()
    understood(mirror, ("ConfigMap", owner()), ("Pod", ALIVE))
    assert followed(mirror, ("DELETED", with_status(ALIVE, **nothing)[1])) == []
    assert "uid-pod" in mirror.pods


def test_the_end_of_a_pod_that_was_never_understood_is_for_who_knows_its_uid() -> None:
    """As after a restart, when the listing is the first to report it."""
    mirror = Mirror()
    alive, gone = with_status(ALIVE, **ODD), ("DELETED", with_status(LEAVING, **ODD)[1])
    assert followed(mirror, alive, with_status(ENDED, **ODD), gone) == [
        ("uid-pod", False), ("uid-pod", True), ("uid-pod", True),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "thing"),
    [
        ("Node", {"spec": {}, "status": {"allocatable": {"cpu": "lots"}}}),
        ("Job", {"spec": {"parallelism": 1}, "status": {"failedIndexes": "a-b"}}),
        ("Pod", {"spec": {"containers": [{"name": "task", "resources": {"limits": {"nvidia.com/gpu": "x"}}}]}, "status": {}}),
        ("ConfigMap", {"data": {"key": "hunter2"}, "metadata": {"finalizers": 7}}),
        ("PersistentVolume", {"spec": 5}),
    ],
)  # fmt: skip
def test_any_object_may_be_absurd(kind: str, thing: Object) -> None:
    metadata = {**owner()[1]["metadata"], "uid": "odd", "name": "odd", **thing.get("metadata", {})}
    mirror = Mirror()
    told, unread = understood(mirror, (kind, ("ADDED", {**thing, "metadata": metadata})), ("ConfigMap", owner()))
    assert [reason.partition(" is not")[0] for reason in unread] == [f"{kind} ops/odd"]
    assert told
    assert not mirror.pods


def test_texts_for_people_have_an_end_and_no_secrets() -> None:
    thing = {
        "metadata": {"name": "x", "uid": "u", "annotations": {"mine": "hunter2"}},
        "data": {"k": "hunter2"},
        "spec": "y" * MOST,
    }
    told = unreadable("ConfigMap", thing, ValueError("a\nb"))
    assert len(told.raw) == MOST + 1
    assert "hunter2" not in told.raw
    assert (told.reason, told.uid, told.run_id) == ("ConfigMap x is not understood: ValueError: a b", "u", None)
