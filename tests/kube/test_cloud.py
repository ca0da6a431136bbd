"""The Kubernetes cloud on a real control plane: runs are launched, seen and ended, and nothing is left."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from clusters.clouds.drivers.base import (
    CloudError,
    CloudRefused,
    Mount,
    NfsSource,
    NotOurs,
    RunRef,
    VolumeRef,
    VolumeSource,
    WatchExpired,
)
from clusters.clouds.drivers.kubernetes.api.client import Client
from clusters.clouds.drivers.kubernetes.cloud import KubernetesCloud
from clusters.clouds.drivers.kubernetes.render import names
from clusters.clouds.drivers.kubernetes.repair import upkeep
from clusters.frameworks.base import Resources
from clusters.manifest.cluster import ClusterSpec
from clusters.runs.plan import build_plan
from tests.kube.following import CountingClient, Following, cloud_of
from tests.kube.plane import Object, Plane, Refused
from tests.kube.plans import IMAGE, data, plan, role, run_ref, volume
from tests.kube.stages import LINGERS

pytestmark = pytest.mark.kube

KINDS = {
    "/api/v1": ("pods", "configmaps", "secrets", "services", "persistentvolumeclaims"),
    "/apis/apps/v1": ("deployments", "statefulsets", "replicasets"),
    "/apis/batch/v1": ("jobs",),
    "/apis/networking.k8s.io/v1": ("networkpolicies",),
}


@pytest.fixture
def space(plane: Plane) -> Iterator[str]:
    """Returns the name of a namespace that does not exist yet."""
    name = f"line-{secrets.token_hex(4)}"
    yield name
    if name in {each["metadata"]["name"] for each in plane.request("GET", "/api/v1/namespaces")["items"]}:
        plane.request("DELETE", f"/api/v1/namespaces/{name}")


def left_of(plane: Plane, run: RunRef) -> list[str]:
    label = names.selector(run_id=run.id)
    found = [
        f"{kind}/{item['metadata']['name']}"
        for api, kinds in KINDS.items()
        for kind in kinds
        for item in plane.request("GET", f"{api}/namespaces/{run.namespace}/{kind}", labelSelector=label)["items"]
    ]
    volumes = plane.request("GET", "/api/v1/persistentvolumes", labelSelector=label)["items"]
    return found + [f"persistentvolumes/{item['metadata']['name']}" for item in volumes]


def end(plane: Plane, run: RunRef, role_name: str, code: int, **index: int) -> None:
    label = names.selector(run_id=run.id, role=role_name)
    if index:
        label += f",batch.kubernetes.io/job-completion-index={index['index']}"
    plane.end_pods(run.namespace, label, code)


def test_a_run_is_launched_seen_ended_and_gone(
    plane: Plane, cloud: KubernetesCloud, following: Following, space: str
) -> None:
    run = run_ref(space)
    roles = (role("master"), role("ps", restart="Always", gpus=0), role("worker", 3))
    cloud.apply(plan(*roles, run=run))
    following.until(lambda: len(following.of(run, "Running")) == 5)
    tasks = following.of(run)
    assert [f"{task.role}-{task.index}" for task in tasks] == ["master-0", "ps-0", "worker-0", "worker-1", "worker-2"]
    assert all(task.scheduled_at and task.started_at and task.node for task in tasks)
    assert {task.gpu_model for task in tasks if task.role != "ps"} == {"NVIDIA-A100"}

    end(plane, run, "master", 0)
    following.until(lambda: len(following.of(run, "Succeeded")) == 1)
    (master,) = following.of(run, "Succeeded")
    assert (master.role, master.exit_code, master.estimated) == ("master", 0, False)
    assert master.finished_at
    assert len(following.of(run, "Running")) == 4

    cloud.delete(run)
    following.until(lambda: following.is_gone(run))
    assert len(following.of(run, "Failed")) == 4
    assert all(task.finished_at and task.reason == "Stopped" for task in following.of(run, "Failed"))
    plane.until(f"/api/v1/namespaces/{space}/configmaps", lambda found: names.owner_name(run) not in found)
    assert left_of(plane, run) == []


def test_a_launch_takes_at_most_eleven_writes_however_many_tasks(
    plane: Plane, cloud: KubernetesCloud, following: Following, space: str
) -> None:
    client = cloud._client
    assert isinstance(client, CountingClient)
    run = run_ref(space)
    roles = (role("master"), role("ps", restart="Always", gpus=0), role("worker", 20, gpus=0))
    # Acknowledging news also writes, and how often before the launch is over is random.
    following.acknowledges = False
    cloud.apply(plan(*roles, run=run, mounts=data()))
    assert client.writes <= 11
    following.acknowledges = True
    following.until(lambda: len(following.of(run, "Running")) == 22 and following.storage(run)[-1] == "ready")
    following.acknowledges = False
    following.until_idle()
    client.writes = 0
    cloud.delete(run)
    # The owner, the Service and what creates the pods of each role.
    assert client.writes == 5
    following.acknowledges = True
    following.until(lambda: following.is_gone(run))


def test_what_a_thousand_workers_share_is_kept_once(
    plane: Plane, cloud: KubernetesCloud, following: Following, space: str
) -> None:
    """Uses the longest possible names, and checks that pods are as small as those of a single worker. Starts only a
    twentieth of them; the benchmark measures all."""
    run = run_ref(space, appcode="a-code-that-is-rather-long", cluster="and-a-cluster-that-is-too")
    roles = {"master": {"flavor": "f"}, "ps": {"flavor": "f"}, "worker": {"flavor": "f", "count": 1000}}
    of = ClusterSpec.model_validate({"image": "i", "command": "python train.py", "roles": roles})
    counts: dict[str, int] = {each: of.count(each) for each in of.roles}
    wanted = build_plan(
        run,
        of,
        image=IMAGE,
        resources=dict.fromkeys(of.roles, Resources("f", 100, 128, 0, "")),
        mounts=(),
        addresses=cloud.reserve(run, counts),
    )
    assert len(wanted.shared["TF_CONFIG_CLUSTER"]) > 100_000
    cloud.apply(replace(wanted, roles=tuple(replace(each, count=min(each.count, 50)) for each in wanted.roles)))
    following.until(lambda: len(following.of(run, "Running")) == 52)
    pods = [each for page in cloud._client.pages(f"/api/v1/namespaces/{space}/pods") for each in page["items"]]
    assert max(len(json.dumps(pod)) for pod in pods) < 12_000
    owner = f"/api/v1/namespaces/{space}/configmaps/{names.owner_name(run)}"
    assert plane.request("GET", owner)["data"] == wanted.shared
    with pytest.raises(Refused, match="immutable"):
        plane.request("PATCH", owner, {"data": {"TF_CONFIG_CLUSTER": "{}"}})
    cloud.delete(run)
    following.until(lambda: following.is_gone(run))


def test_a_run_ends_although_somebody_resumes_its_job_meanwhile(
    plane: Plane, cloud: KubernetesCloud, following: Following, space: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upkeep, "STOP_SECONDS", 1.0)
    run = run_ref(space)
    cloud.apply(plan(role("worker", 3), run=run))
    following.until(lambda: len(following.of(run, "Running")) == 3)
    following.acknowledges = False  # keeps its Job until it is set again
    cloud.delete(run)
    job = f"/apis/batch/v1/namespaces/{space}/jobs/{names.role_name(run, 'worker')}"
    plane.request("PATCH", job, {"spec": {"suspend": False}})
    following.acknowledges = True
    following.until(lambda: following.is_gone(run))
    plane.until(f"/api/v1/namespaces/{space}/configmaps", lambda found: names.owner_name(run) not in found)
    assert left_of(plane, run) == []


def test_applying_again_changes_nothing_and_brings_nothing_back(
    plane: Plane, cloud: KubernetesCloud, following: Following, space: str
) -> None:
    whole = plan(role("master"), role("worker", 2), run=run_ref(space))
    path = f"/apis/batch/v1/namespaces/{space}/jobs"
    cloud.apply(whole)
    following.until(lambda: len(following.of(whole.run, "Running")) == 3)
    before = plane.request("GET", path)["items"]
    cloud.apply(whole)
    after = plane.request("GET", path)["items"]
    assert [job["metadata"]["generation"] for job in before] == [job["metadata"]["generation"] for job in after]
    assert len(following.of(whole.run)) == 3

    following.acknowledges = False  # keeps it terminating
    cloud.delete(whole.run)
    cloud.apply(whole)
    following.until(lambda: len(following.of(whole.run, "Failed")) == 3)
    following.acknowledges = True
    following.until(lambda: following.is_gone(whole.run))
    assert len(following.of(whole.run)) == 3


def test_a_run_that_was_never_seen_is_gone_when_deleted(
    cloud: KubernetesCloud, following: Following, plane: Plane, space: str
) -> None:
    run = run_ref(space)
    cloud.delete(run)
    following.until(lambda: following.is_gone(run))
    plane.until(f"/api/v1/namespaces/{space}/configmaps", lambda found: names.owner_name(run) not in found)


def test_a_failed_task_is_started_again_as_a_new_attempt(
    plane: Plane, cloud: KubernetesCloud, following: Following, space: str
) -> None:
    run = run_ref(space)
    cloud.apply(plan(role("worker", 2, retries=1), run=run))
    following.until(lambda: len(following.of(run, "Running")) == 2)
    end(plane, run, "worker", 7, index=1)
    following.until(lambda: [task.attempt for task in following.of(run, "Running")] == [0, 1])
    (failed,) = following.of(run, "Failed")
    assert (failed.index, failed.attempt, failed.exit_code, failed.disrupted) == (1, 0, 7, False)
    cloud.delete(run)
    following.until(lambda: following.is_gone(run))


def test_a_pod_stays_until_its_end_is_written_down(
    plane: Plane, cloud: KubernetesCloud, following: Following, space: str
) -> None:
    run = run_ref(space)
    following.acknowledges = False
    cloud.apply(plan(role("worker", 2), run=run))
    following.until(lambda: len(following.of(run, "Running")) == 2)
    cloud.delete(run)
    following.until(lambda: len(following.of(run, "Failed")) == 2)
    assert len(plane.request("GET", f"/api/v1/namespaces/{space}/pods")["items"]) == 2
    assert not following.is_gone(run)

    # A controller that dies here loses nothing: the next one lists the pods that are still held.
    following._stopped = True
    next_one = cloud_of(plane, cloud._settings.portal)
    with pytest.raises(WatchExpired):
        next(next_one.watch("nodes=1,pods=1,owners=1,namespaces=1"))
    with Following(next_one) as again:
        again.until(lambda: again.is_gone(run))
        assert [(task.phase, task.exit_code) for task in again.of(run)] == [("Failed", 143)] * 2


def test_services_keep_their_index_and_come_back(
    plane: Plane, cloud: KubernetesCloud, following: Following, space: str
) -> None:
    run = run_ref(space)
    cloud.apply(plan(role("master", restart="Always"), role("ps", 2, restart="Always"), run=run))
    following.until(lambda: len(following.of(run, "Running")) == 3)
    assert [task.index for task in following.of(run)] == [0, 0, 1]
    pods = plane.request("GET", f"/api/v1/namespaces/{space}/pods", labelSelector=names.selector(role="ps"))["items"]
    assert sorted(pod["spec"]["hostname"] for pod in pods) == [names.host_name(run, "ps", index) for index in (0, 1)]
    plane.request("DELETE", f"/api/v1/namespaces/{space}/pods/{names.role_name(run, 'ps')}-1")
    following.until(lambda: len(following.of(run)) == 4 and len(following.of(run, "Running")) == 3)
    (ended,) = following.of(run, "Failed")
    assert (ended.role, ended.index, ended.attempt) == ("ps", 1, 0)
    assert [task.attempt for task in following.of(run, "Running") if task.role == "ps"] == [0, 1]
    cloud.delete(run)
    following.until(lambda: following.is_gone(run))


def test_what_waits_says_for_what(plane: Plane, cloud: KubernetesCloud, following: Following, space: str) -> None:
    run = run_ref(space)
    cloud.apply(plan(role("worker", 1, gpus=9), run=run))
    following.until(lambda: any(task.message for task in following.of(run, "Pending")))
    (task,) = following.of(run)
    assert (task.reason, task.scheduled_at) == ("Unschedulable", None)
    assert task.message.startswith("Waits for 9 GPUs. Of ")
    assert "without enough free GPUs" in task.message
    cloud.delete(run)
    following.until(lambda: following.is_gone(run))
    (task,) = following.of(run)
    assert (task.phase, task.reason, task.finished_at) == ("Failed", "Stopped", None)


def test_tasks_go_to_the_nodes_of_the_plan_or_wait(cloud: KubernetesCloud, following: Following, space: str) -> None:
    run, node = run_ref(space), max(cloud.capacity().nodes, key=lambda each: (each.gpus_free, each.name))
    fit = node.gpus_free // 2
    cloud.apply(plan(role("worker", fit + 1, gpus=2, gpu_model=node.gpu_model, nodes=(node.name, "gone")), run=run))
    following.until(lambda: len(following.of(run, "Running")) == fit)
    following.until(lambda: any(task.message for task in following.of(run, "Pending")))
    assert {task.node for task in following.of(run, "Running")} == {node.name}
    (waiting,) = following.of(run, "Pending")
    others = len(cloud.capacity().nodes) - 1
    assert waiting.message.endswith(f"1 without enough free GPUs, {others} that the portal did not choose.")
    cloud.delete(run)
    following.until(lambda: following.is_gone(run))


def test_a_volume_that_cannot_be_made_says_why(
    plane: Plane, cloud: KubernetesCloud, following: Following, space: str
) -> None:
    run = run_ref(space)
    source = VolumeSource(VolumeRef(7, space, "demo", "scratch"), "no-such-class", "20Gi", "ReadWriteOnce", "mnist/3")
    cloud.apply(plan(role("master"), run=run, mounts=(Mount("/elearn/output", False, source),)))
    message = (
        "Waits for its volume, which is not made yet. Its volume is not made: "
        'storageclass.storage.k8s.io "no-such-class" not found.'
    )
    # If the scheduler sees the pod before its claim exists, it first reports another message.
    following.until(lambda: [task.message for task in following.of(run, "Pending")] == [message])
    cloud.delete(run)
    following.until(lambda: following.is_gone(run))


def test_capacity_is_known_without_asking(
    plane: Plane, cloud: KubernetesCloud, following: Following, space: str
) -> None:
    run = run_ref(space)
    before = cloud.capacity()
    assert {node.gpus for node in before.nodes} >= {8}
    cloud.apply(plan(role("worker", 3, gpus=2), run=run))
    following.until(lambda: len(following.of(run, "Running")) == 3)
    free = {node.name: node.gpus_free for node in before.nodes}
    taken = sum(free[node.name] - node.gpus_free for node in cloud.capacity().nodes if node.name in free)
    assert taken == 6
    assert cloud_of(plane, cloud._settings.portal).capacity() == cloud.capacity()
    cloud.delete(run)
    following.until(lambda: following.is_gone(run))
    assert {node.name: node.gpus_free for node in cloud.capacity().nodes} == free


def test_nfs_volumes_are_bound_and_go_with_the_run(
    plane: Plane, cloud: KubernetesCloud, following: Following, space: str
) -> None:
    run = run_ref(space)
    cloud.apply(plan(role("master"), run=run, mounts=(Mount("/elearn/output", False, NfsSource("nfs.example", "/d")),)))
    claims = f"/api/v1/namespaces/{space}/persistentvolumeclaims"
    plane.until(claims, lambda found: [claim["status"]["phase"] for claim in found.values()] == ["Bound"])
    following.until(lambda: len(following.of(run, "Running")) == 1)
    cloud.delete(run)
    following.until(lambda: following.is_gone(run))
    plane.until("/api/v1/persistentvolumes", lambda found: names.persistent_volume_name(run, 0) not in found)
    plane.until(f"/api/v1/namespaces/{space}/configmaps", lambda found: names.owner_name(run) not in found)
    assert left_of(plane, run) == []


def test_the_api_server_s_own_sentence_is_what_people_read(cloud: KubernetesCloud, space: str) -> None:
    with pytest.raises(CloudRefused, match=r"env\[\d+\]\.name: a valid environment variable name"):
        cloud.apply(plan(role("master", env={"not a name=": "1"}), run=run_ref(space)))


def test_a_namespace_that_was_deleted_is_made_again(
    plane: Plane, cloud: KubernetesCloud, following: Following, space: str
) -> None:
    first, second = run_ref(space), run_ref(space)
    cloud.apply(plan(role("master"), run=first))
    following.until(lambda: len(following.of(first, "Running")) == 1)
    plane.request("DELETE", f"/api/v1/namespaces/{space}")
    with pytest.raises(CloudError, match="being terminated"):
        cloud.apply(plan(role("master"), run=second))
    # The namespace goes once all news is acknowledged, because then no finalizer of ours is left.
    plane.until("/api/v1/namespaces", lambda found: space not in found, seconds=60)
    assert following.is_gone(first)
    cloud.apply(plan(role("master"), run=second))
    following.until(lambda: len(following.of(second, "Running")) == 1)
    spaces = plane.request("GET", f"/api/v1/namespaces/{space}")
    assert spaces["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"
    cloud.delete(second)
    following.until(lambda: following.is_gone(second))


def test_an_owner_deleted_by_hand_takes_everything_with_it(
    plane: Plane, cloud: KubernetesCloud, following: Following, space: str
) -> None:
    run = run_ref(space)
    cloud.apply(plan(role("worker", 2), run=run))
    following.until(lambda: len(following.of(run, "Running")) == 2)
    plane.request("DELETE", f"/api/v1/namespaces/{space}/configmaps/{names.owner_name(run)}")
    following.until(lambda: following.is_gone(run))
    plane.until(f"/api/v1/namespaces/{space}/configmaps", lambda found: names.owner_name(run) not in found)
    assert left_of(plane, run) == []


def test_a_position_that_was_compacted_is_told_as_expired(
    plane: Plane, cloud: KubernetesCloud, following: Following, space: str
) -> None:
    other = cloud_of(plane, cloud._settings.portal)
    old = other.list().position
    run = run_ref(space)
    cloud.apply(plan(role("master"), run=run))
    following.until(lambda: len(following.of(run, "Running")) == 1)
    plane.compact()
    plane.stop_apiserver()
    plane.start_apiserver()
    with pytest.raises(WatchExpired, match="too old resource version"):
        for _ in other.watch(old):
            pass
    cloud.delete(run)
    following.until(lambda: following.is_gone(run), seconds=60)


def test_who_followed_before_another_did_must_list_again(cloud: KubernetesCloud, plane: Plane, space: str) -> None:
    """A leader that lost its lead and regained it remembers older facts than the database."""
    other = cloud_of(plane, cloud._settings.portal)
    cloud.list()
    cloud.apply(plan(role("master"), run=run_ref(space)))
    position = other.list().position
    with pytest.raises(WatchExpired, match="not certain what has been told"):
        next(cloud.watch(position))
    assert next(other.watch(position))


def test_a_pod_deleted_by_hand_counts_as_kubernetes_counts_it(
    plane: Plane, cloud: KubernetesCloud, following: Following, space: str
) -> None:
    run = run_ref(space)
    cloud.apply(plan(role("worker", 1, retries=1), run=run))
    following.until(lambda: len(following.of(run, "Running")) == 1)
    plane.request("DELETE", f"/api/v1/namespaces/{space}/pods/{_only_pod(plane, run)['metadata']['name']}")
    following.until(lambda: [task.attempt for task in following.of(run, "Running")] == [1])
    (first,) = following.of(run, "Failed")
    assert (first.reason, first.disrupted) == ("Stopped", False)
    cloud.delete(run)
    following.until(lambda: following.is_gone(run))


def _only_pod(plane: Plane, run: RunRef) -> Object:
    (pod,) = plane.request(
        "GET", f"/api/v1/namespaces/{run.namespace}/pods", labelSelector=names.selector(run_id=run.id)
    )["items"]
    return pod


def test_a_namespace_of_somebody_else_is_left_alone(
    plane: Plane, cloud: KubernetesCloud, following: Following, space: str
) -> None:
    plane.make_namespace(space, {"team": "billing"})
    run = run_ref(space)
    for refused in (
        lambda: cloud.apply(plan(role("master"), run=run)),
        lambda: cloud.apply_volume(volume(space)),
        lambda: cloud.delete(run),
    ):
        with pytest.raises(NotOurs, match=f"kubectl label namespace {space} gpu-cloud/portal=test-"):
            refused()
    there = plane.request("GET", f"/api/v1/namespaces/{space}")
    assert there["metadata"]["labels"] == {"kubernetes.io/metadata.name": space, "team": "billing"}
    assert not plane.request("GET", f"/apis/networking.k8s.io/v1/namespaces/{space}/networkpolicies")["items"]
    assert list(cloud.foreign([space])) == [space]
    assert list(cloud.foreign([space, "kube-system", "nowhere"])) == ["kube-system", space]

    plane.request(
        "PATCH", f"/api/v1/namespaces/{space}", {"metadata": {"labels": {names.PORTAL: cloud._settings.portal}}}
    )
    assert cloud.foreign([space]) == {}
    cloud.apply(plan(role("master"), run=run))
    following.until(lambda: len(following.of(run, "Running")) == 1)
    cloud.delete(run)
    following.until(lambda: following.is_gone(run))


def test_a_namespace_that_is_handed_over_while_it_is_looked_at_stays_handed_over(
    plane: Plane, cloud: KubernetesCloud, space: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plane.make_namespace(space, {names.PORTAL: cloud._settings.portal})
    looks: list[str] = []

    def handed_over(client: Client, path: str, **query: Any) -> Any:
        found = looked(client, path, **query)
        looks.append(path)
        if len(looks) == 1:
            changed = {"metadata": {"labels": {names.PORTAL: "another"}}}
            plane.request("PATCH", f"/api/v1/namespaces/{space}", changed)
        return found

    looked = Client.get_once
    monkeypatch.setattr(Client, "get_once", handed_over)
    with pytest.raises(NotOurs, match="belongs to another portal, “another”"):
        cloud.apply(plan(role("master"), run=run_ref(space)))
    assert len(looks) == 2
    there = plane.request("GET", f"/api/v1/namespaces/{space}")
    assert there["metadata"]["labels"] == {"kubernetes.io/metadata.name": space, names.PORTAL: "another"}
    assert not plane.request("GET", f"/apis/networking.k8s.io/v1/namespaces/{space}/networkpolicies")["items"]


def test_two_portals_never_share_a_namespace_nor_find_each_others_pods(
    plane: Plane, cloud: KubernetesCloud, following: Following, space: str
) -> None:
    other = cloud_of(plane, f"test-{secrets.token_hex(4)}")
    run = run_ref(space)
    cloud.apply(plan(role("master"), role("ps", restart="Always", gpus=0), run=run))
    following.until(lambda: len(following.of(run, "Running")) == 2)
    with pytest.raises(NotOurs, match=f"belongs to another portal, “{cloud._settings.portal}”"):
        other.apply(plan(role("master"), run=run_ref(space)))
    ours = {names.PORTAL: cloud._settings.portal, names.RUN_ID: str(run.id)}
    name = names.base_name(run)
    service = plane.request("GET", f"/api/v1/namespaces/{space}/services/{name}")
    policy = plane.request("GET", f"/apis/networking.k8s.io/v1/namespaces/{space}/networkpolicies/{name}")
    deployment = plane.request("GET", f"/apis/apps/v1/namespaces/{space}/deployments/{name}-ps")
    assert service["spec"]["selector"] == ours
    assert policy["spec"]["podSelector"]["matchLabels"] == ours
    assert policy["spec"]["ingress"][0]["from"] == [{"podSelector": {"matchLabels": ours}}]
    assert deployment["spec"]["selector"]["matchLabels"] == {**ours, names.ROLE: "ps"}
    cloud.delete(run)
    following.until(lambda: following.is_gone(run))


def test_changed_limits_hold_where_nothing_new_is_started_and_an_emptied_quota_goes(
    plane: Plane, cloud: KubernetesCloud, space: str
) -> None:
    quotas = f"/api/v1/namespaces/{space}/resourcequotas"
    client, settings = cloud._client, cloud._settings
    limited = KubernetesCloud(client, replace(settings, quota={"count/pods": "100"}))
    limited.apply_volume(volume(space))
    assert plane.request("GET", f"{quotas}/gpu-cloud")["spec"] == {"hard": {"count/pods": "100"}}
    other = {"metadata": {"name": "of-somebody-else"}, "spec": {"hard": {"count/pods": "50"}}}
    plane.request("POST", quotas, other)

    changed = KubernetesCloud(client, replace(settings, quota={"count/pods": "7"}, largest_volume="5Gi"))
    with Following(changed):
        plane.until(quotas, lambda found: found["gpu-cloud"]["spec"]["hard"] == {"count/pods": "7"})
        ranges = f"/api/v1/namespaces/{space}/limitranges"
        plane.until(ranges, lambda found: found["gpu-cloud"]["spec"]["limits"][1]["max"] == {"storage": "5Gi"})
    with Following(KubernetesCloud(client, settings)):
        plane.until(quotas, lambda found: set(found) == {"of-somebody-else"})


def test_programs_find_each_other_for_as_long_as_they_take_to_end(
    plane: Plane, cloud: KubernetesCloud, following: Following, space: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The test itself takes long, which must not delete everything.
    monkeypatch.setattr(upkeep, "STOP_SECONDS", 600.0)
    run = run_ref(space)
    cloud.apply(plan(role("ps", restart="Always", gpus=0), role("worker", 2), run=run))
    following.until(lambda: len(following.of(run, "Running")) == 3)
    slices = f"/apis/discovery.k8s.io/v1/namespaces/{space}/endpointslices"

    def addresses(found: dict[str, Object]) -> dict[str, str]:
        return {
            each.get("hostname", ""): each["addresses"][0]
            for item in found.values()
            for each in item["endpoints"] or []
        }

    hosts = {names.host_name(run, *task) for task in (("ps", 0), ("worker", 0), ("worker", 1))}
    before = addresses(plane.until(slices, lambda found: set(addresses(found)) == hosts))
    pods = f"/api/v1/namespaces/{space}/pods"
    ours = {"labelSelector": names.selector(run_id=run.id)}
    for pod in plane.request("GET", pods, **ours)["items"]:
        plane.request("PATCH", f"{pods}/{pod['metadata']['name']}", {"metadata": {"annotations": {LINGERS: "yes"}}})
    cloud.delete(run)
    ending = plane.until(
        pods,
        lambda found: len(found) == 3 and all("deletionTimestamp" in each["metadata"] for each in found.values()),
        **ours,
    )
    # One of them ends first.
    first, *others = sorted(ending)
    for name in (first, *others):
        service = plane.request("GET", f"/api/v1/namespaces/{space}/services/{names.base_name(run)}")
        assert "deletionTimestamp" not in service["metadata"]
        assert addresses(plane.until(slices, lambda found: True)) == before
        plane.request("PATCH", f"{pods}/{name}", {"metadata": {"annotations": {LINGERS: None}}})
        plane.until(pods, lambda found, name=name: name not in found, **ours)  # type: ignore[misc]
    following.until(lambda: following.is_gone(run))
    plane.until(f"/api/v1/namespaces/{space}/services", lambda found: not found)
    plane.until(slices, lambda found: not found)
