"""Objects that somebody edits behind the portal's back, through the whole loop: they are as wanted again within 30 s, and people
are told of it once for each edit."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from typing import Any

import pytest

from clusters.clouds.drivers.base import NotOurs
from clusters.clouds.drivers.kubernetes import cloud as kubernetes
from clusters.clouds.drivers.kubernetes.api import kubeconfig
from clusters.clouds.drivers.kubernetes.api.client import Client, Missing
from clusters.clouds.drivers.kubernetes.api.client import path_of as path_in
from clusters.clouds.drivers.kubernetes.build import names
from clusters.clouds.drivers.kubernetes.cloud import KubernetesCloud
from clusters.clouds.drivers.kubernetes.repair import field_ownership
from clusters.clouds.drivers.kubernetes.settings import Settings
from tests.kube.following import CountingClient, Following, cloud_of, portal_kubeconfig
from tests.kube.loops import CONVERGED, Loops
from tests.kube.plane import Object, Plane, Refused, phase
from tests.kube.plans import plan, run_ref, volume
from tests.kube.test_faults import end_all, metadata_of, names_of, spec_of
from tests.kube.test_plane import pod as any_pod

pytestmark = [pytest.mark.kube, pytest.mark.django_db(transaction=True)]

STRATEGIC = "application/strategic-merge-patch+json"


@pytest.fixture
def loops(plane: Plane, people: Any) -> Iterator[Loops]:
    """With the rights that the portal asks for."""
    config = kubeconfig.read(portal_kubeconfig(plane).read_text())
    loops = Loops(plane, f"hand-{secrets.token_hex(4)}", config)
    loops.catalogue()
    loops.start()
    try:
        yield loops
        end_all(loops)
    finally:
        loops.stop()


def path_of(loops: Loops, run: Any, kind: str, role: str = "") -> str:
    return loops.path(kind, run, names_of(loops, run, role))


def told(text: str, verb: str = "run.changed_by_hand") -> int:
    from portal.models import Event

    return Event.objects.filter(verb=verb, message__contains=text).count()


def edit(plane: Plane, path: str, spec: Object, content_type: str = "") -> Object:
    """As `kubectl edit` does. Returns what it is then."""
    edited: Object = plane.request(
        "PATCH", path, {"spec": spec}, content_type=content_type, fieldManager="kubectl-edit"
    )
    return edited["spec"]


def test_what_loses_its_labels_is_not_lost_from_sight(plane: Plane, loops: Loops, people: Any) -> None:
    """Without them nobody would see what else is done to it."""
    run = loops.until_running(cluster := loops.create(people, workers=1, ps=1))
    for kind, role, taken in (
        ("NetworkPolicy", "", names.RUN_ID),
        ("Service", "", names.RUN),
        ("Deployment", "ps", names.ROLE),
        ("Job", "worker", names.RUN_ID),
    ):
        path = path_of(loops, run, kind, role)
        before = metadata_of(plane, path)["labels"]
        plane.request("PATCH", path, {"metadata": {"labels": {taken: None}}}, fieldManager="kubectl-label")
        loops.until(lambda path=path, before=before: metadata_of(plane, path)["labels"] == before)  # type: ignore[misc]
        sentence = f"The labels of {kind} {names_of(loops, run, role)} were changed by hand."
        loops.until(lambda sentence=sentence: told(sentence) == 1)  # type: ignore[misc]
    assert loops.until_running(cluster).pk == run.pk


# The tasks go on meanwhile, so one that is started by kubectl must be allowed there.
MINER = {
    "name": "miner",
    "image": "evil/miner:1",
    "securityContext": {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "runAsNonRoot": True,
        "runAsUser": 1000,
        "seccompProfile": {"type": "RuntimeDefault"},
    },
}


def test_who_opens_the_fence_of_a_run_finds_it_closed_again(plane: Plane, loops: Loops, people: Any) -> None:
    cluster = loops.create(people, workers=1)
    run = loops.until_running(cluster)

    def put_right(kind: str, spec: Object, number: int) -> None:
        path = path_of(loops, run, kind)
        before = spec_of(plane, path)
        assert edit(plane, path, spec) != before
        loops.until(lambda: spec_of(plane, path) == before)
        loops.until(lambda: told(f"{kind} {names_of(loops, run)} was changed by hand.") == number)
        loops.until(lambda: loops.run(cluster).applied_at)

    for number, spec in enumerate(({"ingress": [{}], "egress": [{}]}, {"egress": None}), 1):
        put_right("NetworkPolicy", spec, number)
    # The same one twice: a Service counts no generations.
    for number, spec in enumerate(
        ({"selector": {"app": "evil"}}, {"selector": {"app": "evil"}}, {"selector": None}), 1
    ):
        put_right("Service", spec, number)
    loops.until_running(cluster)
    # What the portal itself changes when it ends the tasks is nobody's edit.
    loops.disable(people, cluster)
    loops.until_phase(cluster, "Stopped")
    assert told("") == 5


def test_what_is_added_to_a_role_is_taken_away_again(plane: Plane, loops: Loops, people: Any) -> None:
    """Not only what the portal says itself is put back."""
    small, large = loops.create(people, "small", workers=1, ps=1), loops.create(people, "large", ps=2)

    def put_right(cluster: Any, kind: str, role: str, spec: Object) -> None:
        run = loops.until_running(cluster)
        path = path_of(loops, run, kind, role)
        before, thing, number = spec_of(plane, path), plane.request("GET", path), told(f"{kind} ")
        assert edit(plane, path, spec, STRATEGIC) != before
        loops.until(lambda: spec_of(plane, path) == before)
        loops.until(lambda: told(f"{kind} {names_of(loops, run, role)} was changed by hand.") == number + 1)
        loops.until_running(cluster)
        # It is the very same one, and nobody else has a word in it any more.
        now = plane.request("GET", path)["metadata"]
        assert now["uid"] == thing["metadata"]["uid"]
        assert field_ownership.is_as_applied(kind, now)
        loops.until(lambda: "miner" not in str(loops.pods(run)))
        loops.until_running(cluster)

    put_right(small, "Deployment", "ps", {"template": {"spec": {"containers": [MINER]}}})
    more = {"name": "task", "env": [{"name": "LD_PRELOAD", "value": "/tmp/evil.so"}]}
    put_right(small, "Deployment", "ps", {"paused": True, "template": {"spec": {"containers": [more]}}})
    put_right(small, "Job", "worker", {"activeDeadlineSeconds": 86400})
    put_right(small, "Service", "", {"externalIPs": ["198.51.100.7"], "ports": [{"name": "more", "port": 22}]})
    put_right(large, "StatefulSet", "ps", {"template": {"spec": {"containers": [MINER]}}})
    assert told("", "run.not_put_right") == 0


def test_what_cannot_be_taken_away_is_told(plane: Plane, loops: Loops, people: Any) -> None:
    """The template of a Job that has begun is fixed, whoever has set it."""
    cluster = loops.create(people, workers=1)
    run = loops.until_running(cluster)
    loops.stop_controller()
    job, pods = path_of(loops, run, "Job", "worker"), loops.path("Pod", run)
    label = loops.label(run, role="worker")
    edit(plane, job, {"suspend": True})
    # Nobody takes the finalizer off now.
    ended = plane.until(pods, lambda found: any(map(has_ended, found.values())), labelSelector=label)
    edit(plane, job, {"template": {"spec": {"nodeSelector": {"kubernetes.io/os": "linux"}}}})
    edit(plane, job, {"suspend": False})
    plane.until(
        pods, lambda found: any(phase(found[name]) == "Running" for name in found.keys() - ended), labelSelector=label
    )
    loops.start_controller()
    left = "and has additions that the portal cannot take away: spec.template.spec.nodeSelector"
    loops.until(lambda: told(f"Job {names_of(loops, run, 'worker')} was changed by hand, {left}") == 1)
    assert spec_of(plane, job)["suspend"] is False
    loops.until_running(cluster)


def has_ended(pod: Object) -> bool:
    return phase(pod) in ("Succeeded", "Failed")


def test_a_job_suspended_by_hand_goes_on(plane: Plane, loops: Loops, people: Any) -> None:
    cluster = loops.create(people, workers=2)
    run = loops.until_running(cluster)
    job = path_of(loops, run, "Job", "worker")
    edit(plane, job, {"suspend": True})
    loops.until(lambda: spec_of(plane, job)["suspend"] is False)
    loops.until_running(cluster)
    assert told(f"Job {names_of(loops, run, 'worker')} was changed by hand. The run is applied again.") == 1
    assert not run.tasks.filter(phase="Failed", disrupted=False).exists()


def test_a_namespace_stays_closed(plane: Plane, loops: Loops, people: Any) -> None:
    cluster = loops.create(people)
    run = loops.until_running(cluster)
    place, policy = f"/api/v1/namespaces/{run.namespace}", loops.path("NetworkPolicy", run, "gpu-cloud")
    limits = loops.path("LimitRange", run, "gpu-cloud")
    before = [plane.request("GET", policy)["spec"], plane.request("GET", limits)["spec"]]
    labels = plane.request("GET", place)["metadata"]["labels"]
    enforce = "pod-security.kubernetes.io/enforce"
    assert labels[enforce] == "restricted"

    def is_as_before() -> bool:
        try:
            found = [plane.request("GET", each)["spec"] for each in (policy, limits)]
        except Refused:
            return False
        return found == before and plane.request("GET", place)["metadata"]["labels"] == labels

    verb, number = "cloud.changed_by_hand", told("", "cloud.changed_by_hand")
    plane.request("PATCH", place, {"metadata": {"labels": {enforce: "privileged"}}})
    plane.request("DELETE", policy)
    plane.request("DELETE", limits)
    loops.until(is_as_before)
    wrong = "its labels of Pod Security were changed, its NetworkPolicy is missing, its LimitRange is missing"
    assert told(f"What bounds namespace {run.namespace} is not as it should be: {wrong}. It is put right.", verb) == 1
    plane.request("PATCH", policy, {"spec": {"egress": [{}]}}, fieldManager="kubectl-edit")
    edit(plane, limits, {"limits": [{"type": "Container", "max": {"cpu": "999"}}]})
    loops.until(is_as_before)
    loops.until(lambda: told("its NetworkPolicy was changed, its LimitRange was changed", verb) == 1)
    assert told("", verb) == number + 2
    assert loops.until_running(cluster).pk == run.pk


def test_the_quota_of_a_namespace_stays(plane: Plane) -> None:
    name = f"quota-{secrets.token_hex(4)}"
    settings = Settings(portal=f"hand-{secrets.token_hex(4)}", quota={"count/pods": "100"})
    cloud = KubernetesCloud(Client.connect(str(portal_kubeconfig(plane))), settings)
    path = path_in("ResourceQuota", name)
    with Following(cloud):
        cloud.apply_volume(volume(name))
        before = spec_of(plane, f"{path}/gpu-cloud")
        edit(plane, f"{path}/gpu-cloud", {"hard": {"count/pods": "9999", "count/secrets": "1"}})
        plane.until(path, lambda found: found["gpu-cloud"]["spec"] == before, seconds=CONVERGED)
        plane.request("DELETE", f"{path}/gpu-cloud")
        plane.until(
            path, lambda found: "gpu-cloud" in found and found["gpu-cloud"]["spec"] == before, seconds=CONVERGED
        )
    plane.request("DELETE", f"/api/v1/namespaces/{name}")


def test_a_namespace_that_somebody_made_again_is_not_taken_for_the_one_before(
    plane: Plane, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kubernetes, "LOOK_SECONDS", 0.0)
    name, every = f"again-{secrets.token_hex(4)}", "/api/v1/namespaces"
    cloud = cloud_of(plane, f"hand-{secrets.token_hex(4)}")
    cloud.apply_volume(volume(name))
    plane.request("DELETE", f"{every}/{name}")
    plane.until(every, lambda found: name not in found)
    plane.make_namespace(name)
    for order in (lambda: cloud.apply_volume(volume(name)), lambda: cloud.apply(plan(run=run_ref(name)))):
        with pytest.raises(NotOurs, match="exists already and is not this portal's"):
            order()
    assert plane.request("GET", f"{every}/{name}/persistentvolumeclaims")["items"] == []
    # Handed over, it is closed before anything is in it.
    label = {names.PORTAL: cloud._settings.portal}
    plane.request("PATCH", f"{every}/{name}", {"metadata": {"labels": label}})
    client = cloud._client
    assert isinstance(client, CountingClient)
    cloud.apply_volume(volume(name))
    assert plane.request("GET", f"/apis/networking.k8s.io/v1/namespaces/{name}/networkpolicies/gpu-cloud")
    found = plane.request("GET", f"{every}/{name}")["metadata"]["labels"]
    assert found["pod-security.kubernetes.io/enforce"] == "restricted"
    # To look whether it is still the same changes nothing.
    client.writes = 0
    cloud.apply_volume(volume(name))
    assert client.writes == 1
    plane.request("DELETE", f"{every}/{name}")


def test_an_object_that_is_another_by_now_is_gone(plane: Plane, namespace: str) -> None:
    """It was deleted by hand, finalizers and all, and there is one of its name again: nothing is tried again for ever."""
    client = cloud_of(plane, "hand")._client
    other = "11111111-1111-1111-1111-111111111111"
    for kind, thing in (("Pod", any_pod("again")), ("ConfigMap", {"metadata": {"name": "again"}})):
        plane.request("POST", path_in(kind, namespace), thing)
        with pytest.raises(Missing):
            client.patch(path_in(kind, namespace, "again"), {"metadata": {"uid": other, "labels": {"a": "b"}}})
    # As the store says it, when it went between being read and being written.
    with pytest.raises(Missing, match="UID in the precondition"):
        client.request("DELETE", path_in("ConfigMap", namespace, "again"), body={"preconditions": {"uid": other}})
