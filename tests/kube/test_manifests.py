"""What the API server is given for a plan: compared as a whole, and tried on a real API server."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusters.clouds.base import CloudRefused, ImageRef, LocalSource, Mount, NfsSource, RunRef
from clusters.clouds.kubernetes import manifests, names
from clusters.clouds.kubernetes.client import Client, path_of
from clusters.clouds.kubernetes.settings import Settings
from clusters.specs import ROLES
from tests.kube.plane import Plane
from tests.kube.plans import data, plan, role, run_ref

SETTINGS = Settings(portal="main")
RUN = RunRef(1042, "ops", "demo", "mnist", 3)
LABELS = {
    "gpu-cloud/portal": "main",
    "gpu-cloud/appcode": "demo",
    "gpu-cloud/cluster": "mnist",
    "gpu-cloud/run": "3",
    "gpu-cloud/run-id": "1042",
}
OWNED = [
    {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "name": "demo-mnist-3-1042-run",
        "uid": "some-uid",
        "blockOwnerDeletion": True,
    }
]
RUNS = st.builds(
    RunRef,
    id=st.integers(1, 10**9),
    namespace=st.just("ops"),
    appcode=st.from_regex(r"[a-z][a-z0-9_-]{1,61}[a-z0-9]", fullmatch=True),
    cluster=st.from_regex(r"[a-z]([a-z0-9-]{0,38}[a-z0-9])?", fullmatch=True),
    number=st.integers(1, 10**6),
)
DNS_LABEL = re.compile(r"[a-z]([a-z0-9-]{0,61}[a-z0-9])?")
LABEL_VALUE = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?")


def metadata(name: str, **labels: str) -> dict[str, Any]:
    return {"name": name, "namespace": "ops", "labels": {**LABELS, **labels}, "ownerReferences": OWNED}


def made(*roles: Any, **changes: Any) -> dict[tuple[str, str], dict[str, Any]]:
    found = manifests.run_manifests(plan(*roles, run=RUN, **changes), "some-uid", SETTINGS)
    return {(each["kind"], each["metadata"]["name"]): each for each in found}


def task_of(manifest: dict[str, Any]) -> dict[str, Any]:
    container: dict[str, Any] = manifest["spec"]["template"]["spec"]["containers"][0]
    return container


# -- names -------------------------------------------------------------------------------------------------------------


@given(RUNS)
def test_every_name_is_a_dns_label_and_every_label_a_label(run: RunRef) -> None:
    for kind in ROLES:
        assert len(names.role_name(run, kind)) <= 52
        assert DNS_LABEL.fullmatch(names.role_name(run, kind))
        assert DNS_LABEL.fullmatch(names.host_name(run, kind, 999))
        assert all(LABEL_VALUE.fullmatch(value) for value in names.role_labels("main", run, kind).values())
    for name in (names.base_name(run), names.owner_name(run), names.secret_name(run), names.volume_name(run, 1)):
        assert DNS_LABEL.fullmatch(name)


def all_names(run: RunRef) -> set[str]:
    return {
        names.base_name(run),
        names.owner_name(run),
        names.secret_name(run),
        *(names.role_name(run, kind) for kind in ROLES),
        *(names.volume_name(run, number) for number in (0, 1)),
        *(names.host_name(run, kind, index) for kind in ROLES for index in (0, 1, 999)),
    }


@given(RUNS, RUNS)
def test_no_two_runs_share_a_name(one: RunRef, other: RunRef) -> None:
    assert one.id == other.id or not all_names(one) & all_names(other)


def test_names_say_whose_run_it_is_and_survive_a_cut() -> None:
    assert names.role_name(RUN, "worker") == "demo-mnist-3-1042-worker"
    assert names.address(RUN, "worker", 7) == "demo-mnist-3-1042-worker-7.demo-mnist-3-1042.ops.svc:2222"
    long = run_ref(id=7, appcode="a_rather_long_code_for_one_appcode", cluster="and-a-long-name")
    assert names.base_name(long) == "a-rather-long-code-for-one-appcode-and-a-7"


# -- whole manifests ---------------------------------------------------------------------------------------------------

POD_SPEC = {
    "subdomain": "demo-mnist-3-1042",
    "restartPolicy": "Never",
    "terminationGracePeriodSeconds": 10,
    "automountServiceAccountToken": False,
    "enableServiceLinks": False,
    "securityContext": {
        "runAsNonRoot": True,
        "runAsUser": 1000,
        "runAsGroup": 1000,
        "fsGroup": 1000,
        "seccompProfile": {"type": "RuntimeDefault"},
    },
    "containers": [
        {
            "name": "task",
            "image": "example/tensorflow:2.21",
            "imagePullPolicy": "IfNotPresent",
            "command": ["bash", "-c", "python train.py"],
            "env": [
                {
                    "name": "TASK_INDEX",
                    "valueFrom": {
                        "fieldRef": {
                            "apiVersion": "v1",
                            "fieldPath": "metadata.labels['batch.kubernetes.io/job-completion-index']",
                        }
                    },
                },
                {"name": "HOME", "value": "/tmp"},
                {"name": "CUDA_DEVICE_ORDER", "value": "PCI_BUS_ID"},
                {"name": "PORTAL_ROLE", "value": "worker"},
            ],
            "ports": [{"name": "task", "containerPort": 2222, "protocol": "TCP"}],
            "resources": {
                "requests": {"cpu": "500m", "memory": "512Mi", "nvidia.com/gpu": "1"},
                "limits": {"cpu": "500m", "memory": "512Mi", "nvidia.com/gpu": "1"},
            },
            "securityContext": {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            },
            "terminationMessagePolicy": "FallbackToLogsOnError",
            "volumeMounts": [
                {"name": "tmp", "mountPath": "/tmp"},
                {"name": "shm", "mountPath": "/dev/shm"},
                {"name": "scratch0", "mountPath": "/elearn/input"},
                {"name": "scratch1", "mountPath": "/elearn/output"},
            ],
        }
    ],
    "volumes": [
        {"name": "tmp", "emptyDir": {}},
        {"name": "shm", "emptyDir": {"medium": "Memory"}},
        {"name": "scratch0", "emptyDir": {}},
        {"name": "scratch1", "emptyDir": {}},
    ],
    "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}],
}


def test_workers_of_a_batch_run_are_one_indexed_job() -> None:
    assert made(role("worker", 100, retries=2))["Job", "demo-mnist-3-1042-worker"] == {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": metadata("demo-mnist-3-1042-worker", **{"gpu-cloud/role": "worker"}),
        "spec": {
            "completionMode": "Indexed",
            "completions": 100,
            "parallelism": 100,
            "backoffLimitPerIndex": 2,
            "maxFailedIndexes": 100,
            "podReplacementPolicy": "Failed",
            "podFailurePolicy": {
                "rules": [{"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}]
            },
            "template": {
                "metadata": {
                    "labels": {**LABELS, "gpu-cloud/role": "worker"},
                    "finalizers": ["gpu-cloud/metering"],
                },
                "spec": POD_SPEC,
            },
        },
    }


def test_a_run_has_one_address_book_and_a_fence_around_its_tasks() -> None:
    found = made(role("master"))
    own = {"gpu-cloud/run-id": "1042"}
    assert set(found) == {
        ("Service", "demo-mnist-3-1042"),
        ("NetworkPolicy", "demo-mnist-3-1042"),
        ("Job", "demo-mnist-3-1042-master"),
    }
    assert found["Service", "demo-mnist-3-1042"] == {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata("demo-mnist-3-1042"),
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": own,
            "ports": [{"name": "task", "port": 2222, "protocol": "TCP"}],
        },
    }
    assert found["NetworkPolicy", "demo-mnist-3-1042"] == {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": metadata("demo-mnist-3-1042"),
        "spec": {
            "podSelector": {"matchLabels": own},
            "policyTypes": ["Ingress", "Egress"],
            "ingress": [{"from": [{"podSelector": {"matchLabels": own}}]}],
            "egress": [{"to": [{"podSelector": {"matchLabels": own}}]}],
        },
    }


def test_the_owner_waits_for_the_database() -> None:
    assert manifests.owner_manifest(RUN, SETTINGS) == {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": "demo-mnist-3-1042-run",
            "namespace": "ops",
            "labels": {**LABELS, "gpu-cloud/owner": "run"},
            "finalizers": ["gpu-cloud/told"],
        },
    }


def test_one_parameter_server_is_a_deployment_and_several_are_a_stateful_set() -> None:
    one = made(role("ps", 1, restart="Always", gpus=0))["Deployment", "demo-mnist-3-1042-ps"]
    assert one["spec"] | {"template": None} == {
        "replicas": 1,
        "strategy": {"type": "Recreate"},
        "selector": {"matchLabels": {"gpu-cloud/run-id": "1042", "gpu-cloud/role": "ps"}},
        "template": None,
    }
    assert one["spec"]["template"]["spec"]["hostname"] == "demo-mnist-3-1042-ps-0"
    assert one["spec"]["template"]["spec"]["restartPolicy"] == "Always"
    assert task_of(one)["env"][0] == {"name": "TASK_INDEX", "value": "0"}
    several = made(role("ps", 3, restart="Always", gpus=0))["StatefulSet", "demo-mnist-3-1042-ps"]
    assert several["spec"] | {"template": None} == {
        "replicas": 3,
        "podManagementPolicy": "Parallel",
        "serviceName": "demo-mnist-3-1042",
        "selector": {"matchLabels": {"gpu-cloud/run-id": "1042", "gpu-cloud/role": "ps"}},
        "template": None,
    }
    field = task_of(several)["env"][0]["valueFrom"]["fieldRef"]["fieldPath"]
    assert field == "metadata.labels['apps.kubernetes.io/pod-index']"


def test_a_task_without_a_gpu_sees_none_and_one_with_a_model_goes_where_it_is() -> None:
    without = made(role("worker", gpus=0))["Job", "demo-mnist-3-1042-worker"]
    assert {"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"} in task_of(without)["env"]
    assert "nvidia.com/gpu" not in task_of(without)["resources"]["limits"]
    model = made(role("worker", gpu_model="NVIDIA-A100"))["Job", "demo-mnist-3-1042-worker"]
    assert model["spec"]["template"]["spec"]["nodeSelector"] == {"nvidia.com/gpu.product": "NVIDIA-A100"}


def test_a_command_is_run_exactly_as_it_stands() -> None:
    found = made(role("master", argv=("bash", "-c", "echo $(hostname) $$ $HOME")))["Job", "demo-mnist-3-1042-master"]
    assert task_of(found)["command"] == ["bash", "-c", "echo $$(hostname) $$$$ $$HOME"]


def test_secrets_are_in_the_secret_and_nowhere_else() -> None:
    found = made(role("master"), mounts=data())
    secret = found.pop(("Secret", "demo-mnist-3-1042-storage"))
    assert secret["stringData"] == {
        "access-key-0": "AKIAEXAMPLE",
        "secret-key-0": "very-secret",
        "access-key-1": "AKIAEXAMPLE",
        "secret-key-1": "very-secret",
    }
    assert "very-secret" not in str(found)
    assert "AKIAEXAMPLE" not in str(found)


def test_data_in_s3_is_fetched_before_and_stored_beside_and_after() -> None:
    found = made(role("master"), mounts=data())
    pod = found["Job", "demo-mnist-3-1042-master"]["spec"]["template"]["spec"]
    fetch, store = pod["initContainers"]
    assert fetch["args"] == ["fetch", "data0:digits", "/elearn/input", "data1:models/mnist/3/", "/elearn/output"]
    assert store["args"] == ["store", "--every", "10", "data1:models/mnist/3/", "/elearn/output"]
    assert (fetch.get("restartPolicy"), store["restartPolicy"]) == (None, "Always")
    assert pod["terminationGracePeriodSeconds"] == 130
    assert pod["containers"][0]["volumeMounts"][-2:] == [
        {"name": "data0", "mountPath": "/elearn/input", "readOnly": True},
        {"name": "data1", "mountPath": "/elearn/output", "readOnly": False},
    ]
    egress = found["NetworkPolicy", "demo-mnist-3-1042"]["spec"]["egress"]
    assert egress[1] == {"ports": [{"port": 9000, "protocol": "TCP"}]}


def test_nfs_is_a_volume_that_only_this_run_can_claim() -> None:
    found = made(role("master"), mounts=(Mount("/elearn/input", True, NfsSource("nfs.example", "/data/digits")),))
    name = "demo-mnist-3-1042-volume0"
    volume = found["PersistentVolume", name]
    assert volume["metadata"] == {"name": name, "labels": LABELS}
    assert volume["spec"]["nfs"] == {"server": "nfs.example", "path": "/data/digits", "readOnly": True}
    assert volume["spec"]["claimRef"]["namespace"] == "ops"
    assert found["PersistentVolumeClaim", name]["spec"]["volumeName"] == name
    pod = found["Job", "demo-mnist-3-1042-master"]["spec"]["template"]["spec"]
    claim = {"claimName": name, "readOnly": True}
    assert {"name": "data0", "persistentVolumeClaim": claim} in pod["volumes"]


def test_what_cannot_run_here_is_refused_with_what_to_change() -> None:
    with pytest.raises(CloudRefused, match="use a datastore of kind S3 or NFS"):
        made(mounts=(Mount("/elearn/input", True, LocalSource("/data", "/data/digits")),))
    with pytest.raises(CloudRefused, match="has no container image"):
        made(image=ImageRef("tensorflow", "", "/venv", ""))


# -- the real API server -----------------------------------------------------------------------------------------------


@pytest.mark.kube
def test_the_api_server_takes_every_manifest_and_pod_security_every_pod(plane: Plane) -> None:
    client = Client.connect(str(plane.kubeconfig))
    mounts = (*data(), Mount("/elearn/more", True, NfsSource("nfs.example", "/data")))
    roles = (
        role("master"),
        role("ps", 2, restart="Always"),
        role("worker", 4, gpu_model="X"),
        role("evaluator", 1, restart="Always"),
    )
    whole = plan(*roles, mounts=mounts, run=run_ref("dry"))
    strictly = {"dryRun": "All", "fieldValidation": "Strict"}
    settings = Settings(portal="main", quota={"count/pods": "100"})
    for manifest in manifests.namespace_manifests("dry", settings):
        client.apply(manifest, fieldValidation="Strict")
    try:
        client.apply(manifests.owner_manifest(whole.run, settings), **strictly)
        made = manifests.run_manifests(whole, "00000000-0000-0000-0000-000000000000", settings)
        client.apply_all(made, **strictly)
        plane.until("/api/v1/namespaces/dry/serviceaccounts", lambda found: "default" in found)
        templates = [each["spec"]["template"] for each in made if "template" in each.get("spec", {})]
        assert len(templates) == 4
        for number, template in enumerate(templates):
            metadata = {**template["metadata"], "name": f"pod-{number}", "namespace": "dry"}
            client.apply(
                {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]}, **strictly
            )
    finally:
        client.delete(path_of("Namespace", name="dry"))
