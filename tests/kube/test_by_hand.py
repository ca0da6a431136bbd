"""Objects edited behind the portal's back, through the whole loop: fields that the portal set are restored within 30 s,
users are notified once per edit, and additions stay."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from typing import Any

import pytest

from clusters.clouds.drivers.base import NotOurs
from clusters.clouds.drivers.kubernetes import namespaces
from clusters.clouds.drivers.kubernetes.api import kubeconfig
from clusters.clouds.drivers.kubernetes.api.client import Client
from clusters.clouds.drivers.kubernetes.api.client import path_of as path_in
from clusters.clouds.drivers.kubernetes.api.errors import Missing
from clusters.clouds.drivers.kubernetes.cloud import KubernetesCloud
from clusters.clouds.drivers.kubernetes.render import names
from clusters.clouds.drivers.kubernetes.settings import Settings
from clusters.clouds.drivers.kubernetes.watch import absent
from tests.kube.following import CountingClient, Following, cloud_of, portal_kubeconfig
from tests.kube.loops import CONVERGED, Loops
from tests.kube.plane import Object, Plane, Refused
from tests.kube.plans import plan, run_ref, volume
from tests.kube.test_faults import end_all, metadata_of, names_of, spec_of
from tests.kube.test_plane import pod as any_pod

pytestmark = [pytest.mark.kube, pytest.mark.django_db(transaction=True)]

STRATEGIC = "application/strategic-merge-patch+json"


@pytest.fixture
def loops(plane: Plane, people: Any) -> Iterator[Loops]:
    """The loops with the rights that the portal requires."""
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
    """Edits the object as `kubectl edit` does. Returns it."""
    edited: Object = plane.request(
        "PATCH", path, {"spec": spec}, content_type=content_type, fieldManager="kubectl-edit"
    )
    return edited["spec"]


def test_what_loses_its_labels_is_not_lost_from_sight(plane: Plane, loops: Loops, people: Any) -> None:
    """Without labels the portal would not see further edits."""
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
        loops.later(run)
    assert loops.until_running(cluster).pk == run.pk


def test_what_is_deleted_while_no_controller_watches_comes_back(
    plane: Plane, loops: Loops, people: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(absent, "PATIENCE", 2.0)
    whole, other = loops.create(people, workers=1, ps=1), loops.create(people, "other", workers=1)
    run, untouched = loops.until_running(whole), loops.until_running(other)
    pods = {each["metadata"]["uid"] for each in loops.pods(run)}
    loops.stop_controller()
    before = {}
    for kind in ("Service", "NetworkPolicy"):
        path = path_of(loops, run, kind)
        before[path] = {name: value for name, value in spec_of(plane, path).items() if name != "clusterIPs"}
        plane.request("DELETE", path)
    kept = {
        kind: metadata_of(plane, path_of(loops, run, kind, role))
        for kind, role in (("Job", "worker"), ("Deployment", "ps"))
    }
    loops.start_controller()
    for path, spec in before.items():
        loops.until(lambda path=path: path.split("/")[-1] in listed(plane, path))  # type: ignore[misc]
        assert spec.items() <= spec_of(plane, path).items()
    assert loops.until_running(whole).pk == run.pk
    assert {each["metadata"]["uid"] for each in loops.pods(run)} == pods
    for kind, role in (("Job", "worker"), ("Deployment", "ps")):
        assert metadata_of(plane, path_of(loops, run, kind, role))["uid"] == kept[kind]["uid"]
    name = names_of(loops, run)
    assert [told(f"{kind} {name} is missing. The run is applied again.") for kind in ("Service", "NetworkPolicy")] == [
        1,
        1,
    ]
    assert told(" is missing.") == 2, "and nothing of the other run"
    assert untouched.pk == loops.until_running(other).pk


def listed(plane: Plane, path: str) -> set[str]:
    """Returns the names of all objects in the collection of an object."""
    return {each["metadata"]["name"] for each in plane.request("GET", path.rpartition("/")[0])["items"]}


# Looks like a task that someone starts with kubectl, so the namespace must allow it while tasks run.
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
        loops.later(run)

    for number, spec in enumerate(({"ingress": [{}], "egress": [{}]}, {"egress": None}), 1):
        put_right("NetworkPolicy", spec, number)
    # The same edit twice, because a Service has no generation counter.
    for number, spec in enumerate(
        ({"selector": {"app": "evil"}}, {"selector": {"app": "evil"}}, {"selector": None}), 1
    ):
        put_right("Service", spec, number)
    loops.until_running(cluster)
    # Changes that the portal makes to end the tasks are not reported as edits.
    loops.disable(people, cluster)
    loops.until_phase(cluster, "Stopped")
    assert told("") == 5


def test_what_others_add_stays_and_what_is_ours_comes_back(plane: Plane, loops: Loops, people: Any) -> None:
    small, large = loops.create(people, "small", workers=1, ps=1), loops.create(people, "large", ps=2)

    def change(cluster: Any, kind: str, role: str, added: Object, ours: Object) -> None:
        run = loops.until_running(cluster)
        path = path_of(loops, run, kind, role)
        before, thing, number = spec_of(plane, path), plane.request("GET", path), told(f"{kind} ")
        with_more = edit(plane, path, added, STRATEGIC)
        assert with_more != before
        assert edit(plane, path, ours, STRATEGIC) != with_more
        loops.until(lambda: spec_of(plane, path) == with_more)
        # The edit before this one touched no field of the portal.
        loops.until(lambda: told(f"{kind} {names_of(loops, run, role)} was changed by hand.") == number + 1)
        loops.later(run)
        assert plane.request("GET", path)["metadata"]["uid"] == thing["metadata"]["uid"]
        loops.until_running(cluster)

    image, less = {"name": "task", "image": "evil/image:1"}, {"name": "task", "resources": {"limits": {"memory": None}}}
    more = {"name": "task", "env": [{"name": "MORE", "value": "yes"}]}
    for container, ours in ((MINER, image), (more, less)):
        added = {"template": {"spec": {"containers": [container]}}}
        change(small, "Deployment", "ps", added, {"template": {"spec": {"containers": [ours]}}})
    added = {"template": {"spec": {"containers": [MINER]}}}
    change(large, "StatefulSet", "ps", added, {"template": {"spec": {"containers": [image]}}})
    change(small, "Job", "worker", {"activeDeadlineSeconds": 86400}, {"suspend": True})
    service = {"externalIPs": ["198.51.100.7"], "ports": [{"name": "more", "port": 22}]}
    change(small, "Service", "", service, {"ports": [{"port": names.PORT, "$patch": "delete"}]})
    assert told("", "run.not_put_right") == 0


def test_what_is_changed_while_nobody_watches_is_put_right(plane: Plane, loops: Loops, people: Any) -> None:
    cluster = loops.create(people, ps=1)
    run = loops.until_running(cluster)
    loops.stop_controller()
    ps, policy = path_of(loops, run, "Deployment", "ps"), path_of(loops, run, "NetworkPolicy")
    before = [spec_of(plane, path) for path in (ps, policy)]
    edit(plane, ps, {"template": {"spec": {"containers": [{"name": "task", "image": "evil/image:1"}]}}}, STRATEGIC)
    edit(plane, policy, {"egress": None})
    loops.start_controller()
    loops.until(lambda: [spec_of(plane, path) for path in (ps, policy)] == before)
    loops.until_running(cluster)


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
    edit(plane, policy, {"ingress": [{}]})
    plane.request("DELETE", limits)
    loops.until(is_as_before)
    wrong = "its labels of Pod Security were changed, its NetworkPolicy was changed, its LimitRange is missing"
    sentence = f"What bounds namespace {run.namespace} is not as it should be: {wrong}. It is put right."
    loops.until(lambda: told(sentence, verb) == 1)
    assert told("", verb) == number + 1
    assert loops.until_running(cluster).pk == run.pk


def test_the_quota_and_the_limits_of_a_namespace_stay(plane: Plane) -> None:
    edited, deleted = (f"quota-{secrets.token_hex(4)}" for _ in range(2))
    settings = Settings(portal=f"hand-{secrets.token_hex(4)}", quota={"count/pods": "100", "count/services": "50"})
    cloud = KubernetesCloud(Client.connect(str(portal_kubeconfig(plane))), settings)
    with Following(cloud):
        for name in (edited, deleted):
            cloud.apply_volume(volume(name))
        quota, limits = path_in("ResourceQuota", edited), path_in("LimitRange", edited)
        wanted, before = dict(settings.quota or {}), spec_of(plane, f"{limits}/gpu-cloud")
        edit(plane, f"{limits}/gpu-cloud", {"limits": [{"type": "Container", "max": {"cpu": "999"}}]})
        # Additions to a quota only make it stricter.
        more = {"count/pods": "9999", "count/secrets": "1"}
        edit(plane, f"{quota}/gpu-cloud", {"hard": more})
        plane.request("DELETE", f"{path_in('ResourceQuota', deleted)}/gpu-cloud")
        for path, hard in ((quota, more | wanted), (path_in("ResourceQuota", deleted), wanted)):
            plane.until(
                path,
                lambda found, hard=hard: found.get("gpu-cloud", {}).get("spec") == {"hard": hard},  # type: ignore[misc]
                seconds=CONVERGED,
            )
        plane.until(limits, lambda found: found["gpu-cloud"]["spec"] == before, seconds=CONVERGED)
    for name in (edited, deleted):
        plane.request("DELETE", f"/api/v1/namespaces/{name}")


def test_a_namespace_that_somebody_made_again_is_not_taken_for_the_one_before(
    plane: Plane, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(namespaces, "LOOK_SECONDS", 0.0)
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
    # A namespace that is handed over is secured before anything is created in it.
    label = {names.PORTAL: cloud._settings.portal}
    plane.request("PATCH", f"{every}/{name}", {"metadata": {"labels": label}})
    client = cloud._client
    assert isinstance(client, CountingClient)
    cloud.apply_volume(volume(name))
    assert plane.request("GET", f"/apis/networking.k8s.io/v1/namespaces/{name}/networkpolicies/gpu-cloud")
    found = plane.request("GET", f"{every}/{name}")["metadata"]["labels"]
    assert found["pod-security.kubernetes.io/enforce"] == "restricted"
    # Checking that nothing changed writes nothing.
    client.writes = 0
    cloud.apply_volume(volume(name))
    assert client.writes == 1
    plane.request("DELETE", f"{every}/{name}")


def test_an_object_that_is_another_by_now_is_gone(plane: Plane, namespace: str) -> None:
    """Someone deleted it, finalizers included, and recreated the name: the portal must not retry for ever."""
    client = cloud_of(plane, "hand")._client
    other = "11111111-1111-1111-1111-111111111111"
    for kind, thing in (("Pod", any_pod("again")), ("ConfigMap", {"metadata": {"name": "again"}})):
        plane.request("POST", path_in(kind, namespace), thing)
        with pytest.raises(Missing):
            client.patch(path_in(kind, namespace, "again"), {"metadata": {"uid": other, "labels": {"a": "b"}}})
    # The error of the store if the object disappears between read and write.
    with pytest.raises(Missing, match="UID in the precondition"):
        client.request("DELETE", path_in("ConfigMap", namespace, "again"), body={"preconditions": {"uid": other}})
