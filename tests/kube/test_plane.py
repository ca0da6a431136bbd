"""What tests of the Kubernetes cloud rely on: the plane behaves like a real cluster, and its nodes obey their annotations."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from kubernetes import client as kubernetes_client

from tests.kube.plane import GPU, GPU_MODEL, Object, Plane, Refused, condition, phase

pytestmark = pytest.mark.kube

# Takes 3 s alone on two cores and 20 s beside ten other processes; the rest allows for a busier machine.
START_SECONDS = 90.0


def pod_template(gpus: int = 1, **notes: str) -> Object:
    """Returns a pod template that Pod Security "restricted" admits."""
    container = {
        "name": "main",
        "image": "example/none:1",
        "resources": {"limits": {"cpu": "1", "memory": "1Gi", **({GPU: str(gpus)} if gpus else {})}},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "runAsNonRoot": True,
            "runAsUser": 1000,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
    }
    return {
        "metadata": {
            "labels": {"app": "main"},
            "annotations": {f"plane/{name.replace('_', '-')}": notes[name] for name in notes},
        },
        "spec": {
            "restartPolicy": "Never",
            "automountServiceAccountToken": False,
            "terminationGracePeriodSeconds": 30,
            "containers": [container],
        },
    }


def pod(name: str, **template: Any) -> Object:
    made = pod_template(**template)
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {**made["metadata"], "name": name}, "spec": made["spec"]}


def indexed_job(name: str, replicas: int, **template: Any) -> Object:
    spec = {
        "completionMode": "Indexed",
        "completions": replicas,
        "parallelism": replicas,
        "backoffLimitPerIndex": 0,
        "template": pod_template(**template),
    }
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name}, "spec": spec}


def of(namespace: str, kind: str = "pods") -> str:
    return f"/apis/batch/v1/namespaces/{namespace}/jobs" if kind == "jobs" else f"/api/v1/namespaces/{namespace}/{kind}"


def all_in(wanted: str, count: int) -> Any:
    return lambda pods: [phase(pod) for pod in pods.values()] == [wanted] * count


def ended(pod: Object) -> Object:
    found: Object = pod["status"]["containerStatuses"][0]["state"]["terminated"]
    return found


def test_a_plane_is_up_in_seconds_and_leaves_nothing_running(tmp_path: Path) -> None:
    plane = Plane(tmp_path / "plane")
    began = time.monotonic()
    plane.start()
    seconds = time.monotonic() - began
    try:
        plane.add_nodes(2, gpus=4, model="NVIDIA-H200")
        version = kubernetes_client.VersionApi(plane.client()).get_code()
        nodes = plane.request("GET", "/api/v1/nodes")["items"]
        memory, numbers = plane.memory(), plane.pids()
    finally:
        plane.stop()
    print(f"up in {seconds:.1f} s; MB: { {name: size >> 20 for name, size in memory.items()} }")
    assert seconds < START_SECONDS
    assert version.git_version == "v1.36.3"
    assert [node["status"]["allocatable"][GPU] for node in nodes] == ["4", "4"]
    assert [node["metadata"]["labels"][GPU_MODEL] for node in nodes] == ["NVIDIA-H200"] * 2
    assert sorted(memory) == ["etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kwok"]
    assert not any(Path(f"/proc/{number}").exists() for number in numbers)


def test_an_indexed_job_with_30_gpus_runs_until_it_is_told_how_it_ends(plane: Plane, namespace: str) -> None:
    plane.request("POST", of(namespace, "jobs"), indexed_job("workers", 30))
    running = plane.until(of(namespace), all_in("Running", 30))
    nodes = [pod["spec"]["nodeName"] for pod in running.values()]
    assert max(nodes.count(name) for name in nodes) <= 8

    first, *_ = sorted(running)
    plane.request("PATCH", f"{of(namespace)}/{first}", {"metadata": {"annotations": {"plane/exit-code": "7"}}})
    pods = plane.until(of(namespace), lambda pods: phase(pods[first]) == "Failed")
    assert ended(pods[first])["exitCode"] == 7
    assert ended(pods[first])["reason"] == "Error"
    assert (
        ended(pods[first])["startedAt"]
        == running[first]["status"]["containerStatuses"][0]["state"]["running"]["startedAt"]
    )
    assert ended(pods[first])["finishedAt"] >= ended(pods[first])["startedAt"]
    assert condition(pods[first], "Ready") == "False"
    assert sum(phase(pod) == "Running" for pod in pods.values()) == 29

    plane.end_pods(namespace, "app=main", 0)
    jobs = plane.until(of(namespace, "jobs"), lambda jobs: condition(jobs["workers"], "Failed") == "True")
    assert jobs["workers"]["status"]["succeeded"] == 29
    assert jobs["workers"]["status"]["failedIndexes"] == "0"


def test_more_than_all_gpus_waits_with_a_reason(plane: Plane, namespace: str) -> None:
    plane.request("POST", of(namespace), pod("huge", gpus=9))
    pods = plane.until(of(namespace), lambda pods: condition(pods["huge"], "PodScheduled") == "False")
    (scheduled,) = pods["huge"]["status"]["conditions"]
    assert scheduled["reason"] == "Unschedulable"
    assert f"Insufficient {GPU}" in scheduled["message"]


def test_a_pod_waits_for_its_image_and_ends_out_of_memory(plane: Plane, namespace: str) -> None:
    plane.request("POST", of(namespace), pod("slow", waiting="ImagePullBackOff", exit_code="137", reason="OOMKilled"))

    def waiting(pods: dict[str, Object]) -> bool:
        return any(status["state"].get("waiting") for status in pods["slow"]["status"].get("containerStatuses", []))

    waits = plane.until(of(namespace), waiting)["slow"]
    assert phase(waits) == "Pending"
    assert waits["status"]["containerStatuses"][0]["state"]["waiting"]["reason"] == "ImagePullBackOff"
    plane.request("PATCH", f"{of(namespace)}/slow", {"metadata": {"annotations": {"plane/waiting": None}}})
    failed = plane.until(of(namespace), all_in("Failed", 1))["slow"]
    assert (ended(failed)["exitCode"], ended(failed)["reason"]) == (137, "OOMKilled")


def test_a_deleted_pod_ends_first_and_stays_while_a_finalizer_holds_it(plane: Plane, namespace: str) -> None:
    held = pod("held")
    held["metadata"]["finalizers"] = ["tests.example/hold"]
    plane.request("POST", of(namespace), held)
    plane.until(of(namespace), all_in("Running", 1))
    plane.request("DELETE", f"{of(namespace)}/held")
    pods = plane.until(of(namespace), lambda pods: pods["held"]["metadata"].get("deletionGracePeriodSeconds") == 0)
    assert ended(pods["held"])["exitCode"] == 143
    plane.request("PATCH", f"{of(namespace)}/held", {"metadata": {"finalizers": None}})
    plane.until(of(namespace), lambda pods: not pods)


def test_pods_of_a_lost_node_stay(plane: Plane, namespace: str) -> None:
    (name,) = plane.add_nodes(1, model="NVIDIA-LOST")
    lost = pod("lost")
    lost["spec"] |= {"nodeSelector": {GPU_MODEL: "NVIDIA-LOST"}}
    plane.request("POST", of(namespace), lost)
    plane.until(of(namespace), all_in("Running", 1))
    plane.lose_node(name)
    plane.until(
        "/api/v1/nodes", lambda nodes: "node.kubernetes.io/unreachable" in str(nodes[name]["spec"].get("taints"))
    )
    plane.request("DELETE", f"{of(namespace)}/lost")
    with pytest.raises(TimeoutError):
        plane.until(of(namespace), lambda pods: not pods, seconds=2)
    plane.remove_node(name)


def test_nodes_are_put_back_as_they_were(plane: Plane, namespace: str) -> None:
    before = plane.nodes()
    lost, removed, cordoned, tainted, labelled, *_ = before
    plane.add_nodes(1, gpus=4, model="NVIDIA-H200")
    plane.lose_node(lost)
    plane.remove_node(removed)
    taint = {"key": "team", "value": "ml", "effect": "NoSchedule"}
    for name, change in (
        (cordoned, {"spec": {"unschedulable": True}}),
        (tainted, {"spec": {"taints": [taint]}}),
        (labelled, {"metadata": {"labels": {GPU_MODEL: "NVIDIA-LOST"}}}),
    ):
        plane.request("PATCH", f"/api/v1/nodes/{name}", change)
    plane.put_back(before)
    after = plane.nodes()
    assert after.keys() == before.keys()
    touched = {lost, removed, cordoned, tainted, labelled}
    for name, node in after.items():
        # Untouched nodes are the same objects.
        assert (node["metadata"]["uid"] == before[name]["metadata"]["uid"]) == (name not in touched)
        assert node["metadata"]["labels"][GPU_MODEL] == "NVIDIA-A100"
        assert condition(node, "Ready") == "True"
        assert not node["spec"].keys() & {"taints", "unschedulable"}
    # Recreated nodes run pods again.
    for name in touched:
        there = pod(name)
        there["spec"] |= {"nodeSelector": {"kubernetes.io/hostname": name}}
        plane.request("POST", of(namespace), there)
    plane.until(of(namespace), all_in("Running", len(touched)))

    plane.stop_apiserver()
    plane.put_back(before)
    assert plane.nodes().keys() == before.keys()


def test_pod_security_restricted_refuses_root(plane: Plane) -> None:
    name = plane.make_namespace("restricted", {"pod-security.kubernetes.io/enforce": "restricted"})
    try:
        plane.request("POST", of(name), pod("careful"))
        root = pod("root")
        root["spec"]["containers"][0]["securityContext"] |= {"runAsNonRoot": False, "runAsUser": 0}
        with pytest.raises(Refused) as refused:
            plane.request("POST", of(name), root)
        assert refused.value.status == 403
        assert 'violates PodSecurity "restricted:latest"' in refused.value.message
        assert "runAsUser=0" in refused.value.message
    finally:
        plane.request("DELETE", f"/api/v1/namespaces/{name}")


def test_server_side_apply_can_be_tried_before_it_is_done(plane: Plane, namespace: str) -> None:
    path, job = f"{of(namespace, 'jobs')}/tried", indexed_job("tried", 2)
    answer = plane.apply(path, job, dryRun="All", fieldValidation="Strict")
    assert answer["spec"]["completions"] == 2
    assert answer["metadata"]["managedFields"][0]["manager"] == "tests"
    assert plane.request("GET", of(namespace, "jobs"))["items"] == []
    with pytest.raises(Refused, match=r"\.spec\.wrong: field not declared in schema"):
        plane.apply(path, {**job, "spec": {**job["spec"], "wrong": 1}}, dryRun="All")


def test_people_and_accounts_may_do_only_what_rbac_says(plane: Plane, namespace: str) -> None:
    bob = kubernetes_client.CoreV1Api(plane.client(plane.kubeconfig_for("bob")))
    with pytest.raises(kubernetes_client.ApiException, match='User \\\\"bob\\\\" cannot list resource'):
        bob.list_namespaced_pod(namespace)

    account = kubernetes_client.CoreV1Api(plane.client(plane.kubeconfig_for_account(namespace, "default")))
    with pytest.raises(kubernetes_client.ApiException) as refused:
        account.list_namespaced_pod(namespace)
    assert refused.value.status == 403
    rules = [{"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]}]
    rbac = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}"
    plane.request("POST", f"{rbac}/roles", {"metadata": {"name": "lists"}, "rules": rules})
    binding = {
        "metadata": {"name": "lists"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "lists"},
        "subjects": [{"kind": "ServiceAccount", "name": "default", "namespace": namespace}],
    }
    plane.request("POST", f"{rbac}/rolebindings", binding)
    wait = time.monotonic() + 60
    while True:  # the authorizer learns of a new binding through a watch
        try:
            assert account.list_namespaced_pod(namespace).items == []
            return
        except kubernetes_client.ApiException:
            assert time.monotonic() < wait
            time.sleep(0.05)
