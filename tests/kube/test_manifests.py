"""The manifests of a plan: compared as a whole, and applied to a real API server.

expected/ contains all manifests of one plan of each kind: of one plan whole, of the others as differences from it
(differences.py). After an intended change, `python -m tests.kube.test_manifests` rewrites them; review the diff.
"""

from __future__ import annotations

import dataclasses
import json
import random
import re
import secrets
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusters.clouds.drivers.base import (
    CloudRefused,
    Endpoint,
    Environment,
    ImageRef,
    LocalSource,
    Mount,
    NfsSource,
    RunRef,
    S3Source,
    VolumeRef,
    VolumeSource,
)
from clusters.clouds.drivers.kubernetes.api.client import Client, path_of
from clusters.clouds.drivers.kubernetes.cloud import KubernetesCloud
from clusters.clouds.drivers.kubernetes.render import (
    cache,
    environments,
    kept,
    manifests,
    names,
    pods,
    queueing,
    storage,
)
from clusters.clouds.drivers.kubernetes.repair.drift import Drift
from clusters.clouds.drivers.kubernetes.settings import Settings
from clusters.clouds.drivers.kubernetes.watch.capacity import asked_of
from clusters.frameworks import ROLES
from tests.kube import differences
from tests.kube.plane import Plane
from tests.kube.plans import IMAGE, data, every_kind, plan, role, run_ref, volume

SETTINGS = Settings(portal="main")
RUN = RunRef(1042, "ops", "demo", "mnist", 3)
COMMON = {
    "app.kubernetes.io/name": "mnist",
    "app.kubernetes.io/instance": "demo-mnist-3-1042",
    "app.kubernetes.io/part-of": "demo",
    "app.kubernetes.io/managed-by": "gpu-cloud",
}
LABELS = {
    **COMMON,
    "gpu-cloud/portal": "main",
    "gpu-cloud/appcode": "demo",
    "gpu-cloud/cluster": "mnist",
    "gpu-cloud/run": "3",
    "gpu-cloud/run-id": "1042",
}
ROLE = {"gpu-cloud/role": "worker", "app.kubernetes.io/component": "worker"}
OURS = {"gpu-cloud/portal": "main", "gpu-cloud/run-id": "1042"}
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


@pytest.mark.parametrize("name", every_kind())
def test_what_a_preview_counts_is_what_the_pod_asks_for(name: str) -> None:
    """The preview may lack only what is unknown before there is a run: keys, addresses and versions."""
    plan, settings = every_kind()[name]
    source = S3Source("", "", "", "", "")
    mounts = [
        Mount(each.mount_path, each.read_only, source, follow=each.follow, stream_key=each.stream_key and "key")
        for each in plan.mounts
        if isinstance(each.source, S3Source)
    ]
    for each in plan.roles:
        pod = pods.template(plan, each, settings, index="")
        counted = KubernetesCloud.asked(
            settings.json_value(), mounts, each.cpu_milli, each.memory_mb, bool(each.endpoints)
        )
        assert counted == (1000 * asked_of(pod, "cpu"), asked_of(pod, "memory") / 2**20)


def made(*roles: Any, settings: Settings = SETTINGS, **changes: Any) -> dict[tuple[str, str], dict[str, Any]]:
    found = manifests.run_manifests(plan(*roles, run=RUN, **changes), "some-uid", settings)
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
        assert len(names.address(run, kind, 999)) <= names.LONGEST_ADDRESS
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
    assert names.address(RUN, "worker", 7) == "demo-mnist-3-1042-worker-7.demo-mnist-3-1042:2222"
    long = run_ref(id=7, appcode="a_rather_long_code_for_one_appcode", cluster="and-a-long-name")
    assert names.base_name(long) == "a-rather-long-code-for-one-appcode-and-a-7"


# -- whole manifests ---------------------------------------------------------------------------------------------------

POD_SPEC = {
    "subdomain": "demo-mnist-3-1042",
    "restartPolicy": "Never",
    "terminationGracePeriodSeconds": 10,
    "automountServiceAccountToken": False,
    "imagePullSecrets": [{"name": "demo-mnist-3-1042-registries"}],
    "enableServiceLinks": False,
    "securityContext": {
        "runAsNonRoot": True,
        "runAsUser": 1000,
        "runAsGroup": 1000,
        "fsGroup": 1000,
        "fsGroupChangePolicy": "OnRootMismatch",
        "seccompProfile": {"type": "RuntimeDefault"},
    },
    "containers": [
        {
            "name": "task",
            "image": "example/tensorflow:2.21",
            "imagePullPolicy": "IfNotPresent",
            "command": ["timeout", "--kill-after=10", "0", "bash", "-c", "python train.py"],
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
                {"name": "USER", "value": "elearn"},
                {"name": "LOGNAME", "value": "elearn"},
                {"name": "CUDA_DEVICE_ORDER", "value": "PCI_BUS_ID"},
                {"name": "PORTAL_ROLE", "value": "worker"},
            ],
            "ports": [{"name": "task", "containerPort": 2222, "protocol": "TCP"}],
            "resources": {
                "requests": {"cpu": "500m", "memory": "512Mi", "nvidia.com/gpu": "1", "ephemeral-storage": "1Gi"},
                "limits": {"cpu": "500m", "memory": "512Mi", "nvidia.com/gpu": "1", "ephemeral-storage": "50Gi"},
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
                {"name": "work", "mountPath": "/elearn/work"},
            ],
        }
    ],
    "volumes": [
        {"name": "tmp", "emptyDir": {"sizeLimit": "50Gi"}},
        {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "512Mi"}},
        {"name": "scratch0", "emptyDir": {"sizeLimit": "50Gi"}},
        {"name": "scratch1", "emptyDir": {"sizeLimit": "50Gi"}},
        {"name": "work", "emptyDir": {"sizeLimit": "50Gi"}},
    ],
    "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}],
}


def test_workers_of_a_batch_run_are_one_indexed_job() -> None:
    assert made(role("worker", 100, retries=2))["Job", "demo-mnist-3-1042-worker"] == {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": metadata("demo-mnist-3-1042-worker", **ROLE),
        "spec": {
            "suspend": False,
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
                    "labels": {**LABELS, **ROLE},
                    "finalizers": ["gpu-cloud/metering"],
                },
                "spec": POD_SPEC,
            },
        },
    }


def test_of_tasks_that_take_turns_a_job_runs_so_many_at_once() -> None:
    spec = made(dataclasses.replace(role("worker", 100), at_once=20))["Job", "demo-mnist-3-1042-worker"]["spec"]
    assert (spec["completions"], spec["parallelism"], spec["maxFailedIndexes"]) == (100, 20, 100)


def test_a_run_has_one_address_book_and_a_fence_around_its_tasks() -> None:
    found = made(role("worker", 2))
    own = OURS
    assert set(found) == {
        ("Service", "demo-mnist-3-1042"),
        ("NetworkPolicy", "demo-mnist-3-1042"),
        ("Secret", "demo-mnist-3-1042-registries"),
        ("Job", "demo-mnist-3-1042-worker"),
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


def test_a_single_task_has_an_address_where_it_is_told_one_and_a_fence_where_something_is_open() -> None:
    one = role("master")
    assert {kind for kind, _ in made(one)} == {"Job", "Secret"}
    named = dataclasses.replace(one, env={"COORDINATOR": "demo-mnist-3-1042-master-0.demo-mnist-3-1042:2222"})
    assert {kind for kind, _ in made(named)} == {"Service", "Job", "Secret"}
    index = Settings(package_index="http://index.example/simple")
    assert {kind for kind, _ in made(one, settings=index)} == {"NetworkPolicy", "Job", "Secret"}


def test_the_owner_waits_for_the_database() -> None:
    assert manifests.owner_manifest(RUN, SETTINGS) == {
        "immutable": True,
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": "demo-mnist-3-1042-run",
            "namespace": "ops",
            "labels": {**LABELS, "gpu-cloud/owner": "run"},
            "finalizers": ["gpu-cloud/told"],
        },
    }


def test_what_all_tasks_share_stands_in_the_owner_and_not_in_pods() -> None:
    whole = plan(role("worker", 1000, env={"WHO": "$(ALL)/$(TASK_INDEX)"}), run=RUN, shared={"ALL": "a" * 100_000})
    owner = manifests.owner_manifest(RUN, SETTINGS, whole)
    assert (owner["data"], owner["immutable"]) == ({"ALL": "a" * 100_000}, True)
    (job,) = [each for each in manifests.run_manifests(whole, "some-uid", SETTINGS) if each["kind"] == "Job"]
    env = task_of(job)["env"]
    # A variable must come after those that it refers to.
    assert [each["name"] for each in env[:2]] == ["TASK_INDEX", "ALL"]
    assert env[1]["valueFrom"] == {"configMapKeyRef": {"name": "demo-mnist-3-1042-run", "key": "ALL"}}
    assert len(str(job)) < 8000


def test_one_parameter_server_is_a_deployment_and_several_are_a_stateful_set() -> None:
    one = made(role("ps", 1, restart="Always", gpus=0))["Deployment", "demo-mnist-3-1042-ps"]
    assert one["spec"] | {"template": None} == {
        "replicas": 1,
        "strategy": {"type": "Recreate"},
        "selector": {"matchLabels": {**OURS, "gpu-cloud/role": "ps"}},
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
        "selector": {"matchLabels": {**OURS, "gpu-cloud/role": "ps"}},
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


def test_tasks_run_on_no_other_nodes_than_those_that_the_plan_names() -> None:
    several = role("worker", 3, gpu_model="NVIDIA-A100", nodes=("node-2", "node-1"))
    pod = made(several)["Job", "demo-mnist-3-1042-worker"]["spec"]["template"]["spec"]
    names_of = [[{"key": "metadata.name", "operator": "In", "values": [name]}] for name in ("node-1", "node-2")]
    terms = {"nodeSelectorTerms": [{"matchFields": fields} for fields in names_of]}
    assert pod["affinity"] == {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}
    assert pod["nodeSelector"] == {"nvidia.com/gpu.product": "NVIDIA-A100"}


def test_a_command_is_run_exactly_as_it_stands() -> None:
    found = made(role("master", argv=("bash", "-c", "echo $(hostname) $$ $HOME")))["Job", "demo-mnist-3-1042-master"]
    assert task_of(found)["command"][-3:] == ["bash", "-c", "echo $$(hostname) $$$$ $$HOME"]


def test_secrets_are_in_the_secret_and_nowhere_else() -> None:
    found = made(role("master"), mounts=data(), secrets={"TOKEN": "very-secret, too"})
    secret = found.pop(("Secret", "demo-mnist-3-1042-secret"))
    assert secret["stringData"] == {
        "variable-TOKEN": "very-secret, too",
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
    assert fetch["args"] == [
        "fetch",
        "--input",
        "-",
        "-",
        "data0:digits",
        "/elearn/input",
        "data1:models/mnist/3/",
        "/elearn/output",
    ]
    output = ["data1:models/mnist/3/", "/elearn/output"]
    start_folder = ["data1:models/mnist/3/work/master-$(TASK_INDEX)/", "/elearn/work"]
    assert store["args"] == ["store", "--every", "10", "--within", "120", *output, *start_folder]
    assert (fetch.get("restartPolicy"), store["restartPolicy"]) == (None, "Always")
    assert pod["terminationGracePeriodSeconds"] == 130
    assert pod["containers"][0]["volumeMounts"][-2:] == [
        {"name": "data0", "mountPath": "/elearn/input", "readOnly": True},
        {"name": "data1", "mountPath": "/elearn/output", "readOnly": False},
    ]


def test_nfs_is_a_volume_that_only_this_run_can_claim() -> None:
    found = made(role("master"), mounts=(Mount("/elearn/input", True, NfsSource("nfs.example", "/data/digits")),))
    name = "demo-mnist-3-1042-volume0"
    # PersistentVolumes are not namespaced, so the name needs a prefix of its own.
    behind = f"ops-{name}"
    volume = found["PersistentVolume", behind]
    assert volume["metadata"] == {"name": behind, "labels": LABELS}
    assert volume["spec"]["nfs"] == {"server": "nfs.example", "path": "/data/digits", "readOnly": True}
    assert volume["spec"]["claimRef"]["namespace"] == "ops"
    assert found["PersistentVolumeClaim", name]["spec"]["volumeName"] == behind
    pod = found["Job", "demo-mnist-3-1042-master"]["spec"]["template"]["spec"]
    claim = {"claimName": name, "readOnly": True}
    assert {"name": "data0", "persistentVolumeClaim": claim} in pod["volumes"]


def test_what_cannot_run_here_is_refused_with_what_to_change() -> None:
    with pytest.raises(CloudRefused, match="use a datastore of kind S3 or NFS"):
        made(mounts=(Mount("/elearn/input", True, LocalSource("/data", "/data/digits")),))
    with pytest.raises(CloudRefused, match="has no container image"):
        made(image=ImageRef("tensorflow", "", "/venv", ""))
    small = Settings(largest_task={"cpu": "500m", "memory": "1Gi", "nvidia.com/gpu": "1"})
    made(role("worker", cpu_milli=500, memory_mb=1024, gpus=1), settings=small)
    for more in ({"cpu_milli": 501}, {"memory_mb": 1025}, {"gpus": 2}):
        with pytest.raises(CloudRefused, match=r"A worker asks for more .* Choose a smaller flavor"):
            made(role("worker", **more), settings=small)


# -- volumes -----------------------------------------------------------------------------------------------------------


def test_a_volume_is_the_datastore_s_and_not_the_run_s() -> None:
    assert storage.volume_manifest(volume(), SETTINGS) == {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {
            "name": "demo-scratch-7-data",
            "namespace": "ops",
            "labels": {
                "app.kubernetes.io/name": "scratch",
                "app.kubernetes.io/instance": "demo-scratch-7-data",
                "app.kubernetes.io/part-of": "demo",
                "app.kubernetes.io/managed-by": "gpu-cloud",
                "gpu-cloud/portal": "main",
                "gpu-cloud/appcode": "demo",
                "gpu-cloud/datastore": "scratch",
                "gpu-cloud/volume-id": "7",
            },
        },
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": "20Gi"}},
            "storageClassName": "ceph-rbd",
        },
    }
    default = storage.volume_manifest(dataclasses.replace(volume(), storage_class=""), SETTINGS)
    assert "storageClassName" not in default["spec"]
    kinds = {kind for kind, _ in made(role("master"), mounts=(Mount("/elearn/output", False, volume()),))}
    assert kinds == {"Job", "Secret"}


def test_tasks_see_the_folder_of_their_run_and_it_is_made_as_who_they_are() -> None:
    found = made(role("master"), mounts=(Mount("/elearn/output", False, volume(folder="$x/3")),))
    pod = found["Job", "demo-mnist-3-1042-master"]["spec"]["template"]["spec"]
    (folders,) = pod["initContainers"]
    assert folders["command"] == ["mkdir", "-p", "--", "/data0/$$x/3"]
    assert folders["volumeMounts"] == [{"name": "data0", "mountPath": "/data0"}]
    shown = {"name": "data0", "mountPath": "/elearn/output", "readOnly": False, "subPath": "$x/3"}
    assert shown in pod["containers"][0]["volumeMounts"]
    assert pod["terminationGracePeriodSeconds"] == 10
    nfs = NfsSource("nfs.example", "/data/out/mnist/3", "/data/out")
    found = made(role("master"), mounts=(Mount("/elearn/output", False, nfs),))
    assert found["PersistentVolume", "ops-demo-mnist-3-1042-volume0"]["spec"]["nfs"]["path"] == "/data/out"
    pod = found["Job", "demo-mnist-3-1042-master"]["spec"]["template"]["spec"]
    assert pod["initContainers"][0]["command"][-1] == "/data0/mnist/3"
    assert pod["containers"][0]["volumeMounts"][-1]["subPath"] == "mnist/3"


def test_a_volume_that_could_never_be_mounted_is_refused() -> None:
    def refused(source: Any, settings: Settings = SETTINGS, tasks: int = 1) -> str:
        with pytest.raises(CloudRefused) as error:
            made(role("worker", tasks), mounts=(Mount("/elearn/output", False, source),), settings=settings)
        return str(error.value)

    assert "mounted by one task at a time, and this run has 2" in refused(volume(), tasks=2)
    made(role("worker", 2), mounts=(Mount("/elearn/output", False, volume(access_mode="ReadWriteMany")),))
    assert "lies in namespace other, and this runs in ops" in refused(volume("other"))
    offered = Settings(storage_classes=("cephfs", "local-path"))
    assert "does not offer the storage class “ceph-rbd”; it offers cephfs, local-path" in refused(volume(), offered)
    assert "at most 10Gi here" in refused(volume(), Settings(largest_volume="10Gi"))


@given(RUNS, st.integers(1, 10**9))
def test_no_claim_of_a_datastore_is_named_like_one_of_a_run(run: RunRef, number: int) -> None:
    name = names.claim_name(VolumeRef(number, "ops", run.appcode, run.cluster))
    assert DNS_LABEL.fullmatch(name)
    assert name not in all_names(run)
    assert name != names.claim_name(VolumeRef(number + 1, "ops", run.appcode, run.cluster))
    assert all(
        LABEL_VALUE.fullmatch(v)
        for v in names.volume_labels("p", VolumeRef(1, "ops", run.appcode, run.cluster)).values()
    )


# -- traffic -----------------------------------------------------------------------------------------------------------


def egress_to(endpoint: str, *, own: bool = False, **settings: Any) -> dict[str, Any]:
    """Returns the only rule for an S3 server at `endpoint`."""
    mounts = (Mount("/elearn/input", True, S3Source(endpoint, "digits", "", "AKIA", "secret", own=own)),)
    found = made(role("master"), mounts=mounts, settings=Settings(**settings))
    _, rule = found["NetworkPolicy", "demo-mnist-3-1042"]["spec"]["egress"]
    return dict(rule)


INDEX = Settings(portal="main", package_index="http://packages.gpu-cloud-packages.svc:3141/simple")


def saved(lock: str = "", digest: str = "a digest") -> Environment:
    return Environment("torch:3", digest, lock, "", "import this")


@pytest.mark.parametrize(
    ("index", "rule"),
    [
        ("http://10.0.0.7:3141/simple", {"ipBlock": {"cidr": "10.0.0.7/32"}}),
        (
            "http://packages.elsewhere.svc.cluster.local:3141/simple",
            {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "elsewhere"}}},
        ),
    ],
)
def test_the_package_index_is_open_at_its_port_alone(index: str, rule: dict[str, Any]) -> None:
    policy = made(role("master"), settings=Settings(package_index=index))["NetworkPolicy", "demo-mnist-3-1042"]
    assert policy["spec"]["egress"][1] == {"to": [rule], "ports": [{"port": 3141, "protocol": "TCP"}]}


def test_the_token_of_tracking_is_in_the_secret_alone_and_its_server_is_open() -> None:
    settings = Settings(tracking="http://packages.gpu-cloud-packages.svc:3141")
    found = made(role("master"), settings=settings, tracking_token="7:signed")
    secret = found["Secret", names.secret_name(RUN)]
    assert secret["stringData"]["variable-MLFLOW_TRACKING_TOKEN"] == "7:signed"
    assert [name for name, each in found.items() if "7:signed" in json.dumps(each)] == [
        ("Secret", names.secret_name(RUN))
    ]
    _, rule = found["NetworkPolicy", "demo-mnist-3-1042"]["spec"]["egress"]
    assert rule["ports"] == [{"port": 3141, "protocol": "TCP"}]
    without = made(role("master"), tracking_token="7:signed")
    assert "MLFLOW" not in json.dumps(list(without.values()))


def test_an_environment_without_an_index_or_beyond_what_a_config_map_holds_is_refused() -> None:
    with pytest.raises(CloudRefused, match="name a package index"):
        made(role("master"), environment=saved())
    chance = random.Random(7)
    lock = "".join(f"p==1 --hash=sha256:{chance.randbytes(32).hex()}\n" for _ in range(2 * 2**20 // 84))
    made(role("master"), environment=saved(lock), settings=INDEX)
    with pytest.raises(CloudRefused, match="too many packages"):
        made(role("master"), environment=saved(lock), settings=INDEX, shared={"ALL": "a" * 300_000})


def test_each_appcode_has_environments_of_its_own_and_where_they_lie_is_part_of_them() -> None:
    kept = dataclasses.replace(INDEX, environment_class="cephfs")

    def claim(settings: Settings = kept, **changes: Any) -> dict[str, Any]:
        run = dataclasses.replace(RUN, appcode=changes.pop("appcode", "demo"))
        found = environments.claim_manifest(plan(role("master"), run=run, **changes), settings, "2026-07-01")
        assert found is not None
        return found

    one = claim(environment=saved())
    others = [
        claim(environment=saved(), appcode="demo2"),
        claim(environment=saved(digest="another")),
        claim(environment=saved(), image=dataclasses.replace(IMAGE, container="example/tensorflow:3")),
        claim(dataclasses.replace(kept, environment_size="30Gi"), environment=saved()),
        claim(dataclasses.replace(kept, environment_class="nfs"), environment=saved()),
    ]
    assert len({each["metadata"]["name"] for each in [one, *others]}) == 6
    assert all(DNS_LABEL.fullmatch(each["metadata"]["name"]) for each in [one, *others])
    assert claim(environment=saved()) == one
    assert environments.claim_manifest(plan(role("master"), environment=saved()), INDEX, "2026-07-01") is None


def test_a_command_beside_a_program_has_the_python_that_the_program_has() -> None:
    def pod(**changes: Any) -> dict[str, Any]:
        found = made(role("master", **changes), environment=saved(), settings=INDEX)
        return dict(found["Job", "demo-mnist-3-1042-master"]["spec"]["template"])

    words = ("python", "-V")
    assert environments.as_in(pod(), words)[-2:] == words
    assert "PORTAL_ENVIRONMENT" in " ".join(environments.as_in(pod(), words))
    assert environments.as_in(pod(from_image=True), words) == words


def test_no_task_fills_the_disk_of_its_node() -> None:
    found = made(role("master", memory_mb=512), mounts=data())
    spec = found["Job", "demo-mnist-3-1042-master"]["spec"]["template"]["spec"]
    sizes = {volume["name"]: volume["emptyDir"] for volume in spec["volumes"] if "emptyDir" in volume}
    assert sizes == {
        "tmp": {"sizeLimit": "50Gi"},
        "shm": {"medium": "Memory", "sizeLimit": "512Mi"},
        "data0": {"sizeLimit": "50Gi"},
        "data1": {"sizeLimit": "50Gi"},
        "work": {"sizeLimit": "50Gi"},
        "helpers": {"sizeLimit": "1Gi"},
    }
    held = {each["name"]: each["resources"] for each in [*spec["containers"], *spec["initContainers"]]}
    disks = {
        name: (what["requests"]["ephemeral-storage"], what["limits"]["ephemeral-storage"])
        for name, what in held.items()
    }
    assert disks == {"task": ("1Gi", "50Gi"), "fetch": ("100Mi", "1Gi"), "store": ("100Mi", "1Gi")}
    assert all(what["requests"]["memory"] == what["limits"]["memory"] for what in held.values())


def test_an_administrator_may_give_more_disk_or_less_or_no_limit() -> None:
    def disk(**settings: Any) -> tuple[Any, Any, Any]:
        found = made(role("master"), settings=Settings(**settings))
        spec = found["Job", "demo-mnist-3-1042-master"]["spec"]["template"]["spec"]
        held = spec["containers"][0]["resources"]
        return (
            held["requests"].get("ephemeral-storage"), held["limits"].get("ephemeral-storage"), spec["volumes"][0]["emptyDir"],
        )  # fmt: skip

    assert disk(disk="200Gi", disk_request="20Gi") == ("20Gi", "200Gi", {"sizeLimit": "200Gi"})
    assert disk(disk="500Mi") == ("500Mi", "500Mi", {"sizeLimit": "500Mi"})
    assert disk(disk="") == (None, None, {})
    assert disk(largest_task={"ephemeral-storage": "2Gi"}) == ("1Gi", "2Gi", {"sizeLimit": "2Gi"})
    limits = manifests.namespace_manifests("ops", Settings(disk=""))[1]["spec"]["limits"][0]
    assert "ephemeral-storage" not in limits["default"]


def test_only_the_servers_of_its_own_datastores_are_reached() -> None:
    opened = ("10.0.0.0/24", "fd00::7/128")
    assert egress_to("http://10.0.0.7:9000", storage_networks=opened) == {
        "to": [{"ipBlock": {"cidr": "10.0.0.7/32"}}],
        "ports": [{"port": 9000, "protocol": "TCP"}],
    }
    assert egress_to("https://[fd00::7]", storage_networks=opened)["to"] == [{"ipBlock": {"cidr": "fd00::7/128"}}]
    assert egress_to("http://203.0.113.7")["to"] == [{"ipBlock": {"cidr": "203.0.113.7/32"}}]
    public = [
        {
            "ipBlock": {
                "cidr": "0.0.0.0/0",
                "except": [
                    "10.0.0.0/8", "100.100.100.200/32", "100.64.0.0/10", "127.0.0.0/8", "168.63.129.16/32", "169.254.0.0/16",
                    "172.16.0.0/12", "192.0.0.192/32", "192.168.0.0/16", "198.18.0.0/15",
                ],
            }
        },
        {
            "ipBlock": {
                "cidr": "::/0",
                "except": [
                    "64:ff9b::/96", "::1/128", "fc00::/7", "fd00:ec2::254/128", "fd20:ce::254/128", "fe80::/10",
                ],
            }
        },
    ]  # fmt: skip
    assert egress_to("https://s3.example") == {"to": public, "ports": [{"port": 443, "protocol": "TCP"}]}
    more = egress_to("http://s3.example", closed_networks=("10.0.0.1/32", "203.0.113.0/24"), storage_networks=opened)
    assert "203.0.113.0/24" in more["to"][0]["ipBlock"]["except"]
    assert more["to"][2:] == [
        {"ipBlock": {"cidr": "10.0.0.0/24", "except": ["10.0.0.1/32"]}},
        {"ipBlock": {"cidr": "fd00::7/128"}},
    ]
    inside = egress_to("http://minio.storage.svc.cluster.local:9000", storage_namespaces=("storage",))
    assert inside == {"to": [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "storage"}}}]}


@pytest.mark.parametrize(
    "endpoint",
    [
        "http://169.254.169.254", "http://[fd00:ec2::254]:80", "http://minio.kube-system.svc:9000",
        # Addresses that may belong to the API server, a node, a Service or a pod.
        "https://10.96.0.1", "https://192.168.1.10:10250", "https://[fd12::1]:6443", "http://[::ffff:10.96.0.1]",
        "http://[64:ff9b::a9fe:a9fe]", "http://100.64.0.1", "http://127.0.0.1:9000",
    ],
)  # fmt: skip
def test_what_an_administrator_has_not_opened_is_refused(endpoint: str) -> None:
    with pytest.raises(CloudRefused, match="Tasks may not reach"):
        egress_to(endpoint)


def test_the_portal_s_own_object_storage_is_open_without_a_setting_of_the_cluster() -> None:
    """Only its port is open, and what an administrator closed stays closed."""
    assert egress_to("http://10.0.0.5:9000", own=True) == {
        "to": [{"ipBlock": {"cidr": "10.0.0.5/32"}}],
        "ports": [{"port": 9000, "protocol": "TCP"}],
    }
    with pytest.raises(CloudRefused, match="closed its network"):
        egress_to("http://10.0.0.5:9000", own=True, closed_networks=("10.0.0.0/24",))


# -- a business line ---------------------------------------------------------------------------------------------------


def test_a_namespace_is_restricted_limited_and_closed() -> None:
    settings = Settings(
        portal="main",
        quota={"requests.nvidia.com/gpu": "16"},
        largest_task={"cpu": "500m", "memory": "64Gi", "nvidia.com/gpu": "8"},
        dns_addresses=("169.254.20.10/32",),
    )
    own = {"gpu-cloud/portal": "main"}
    inside = {"name": "gpu-cloud", "namespace": "ops", "labels": own}
    security = {f"pod-security.kubernetes.io/{mode}": "restricted" for mode in ("enforce", "audit", "warn")}
    dns = {
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "kube-system"}},
        "podSelector": {"matchLabels": {"k8s-app": "kube-dns"}},
    }
    assert manifests.namespace_manifests("ops", settings) == [
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "ops", "labels": own | security}},
        {
            "apiVersion": "v1",
            "kind": "LimitRange",
            "metadata": inside,
            "spec": {
                "limits": [
                    {
                        "type": "Container",
                        "default": {"cpu": "500m", "memory": "1Gi", "ephemeral-storage": "50Gi"},
                        "defaultRequest": {"cpu": "100m", "memory": "128Mi", "ephemeral-storage": "1Gi"},
                        "max": {"cpu": "500m", "memory": "64Gi"},
                    },
                    {"type": "PersistentVolumeClaim", "max": {"storage": "1Ti"}},
                ]
            },
        },
        {
            "apiVersion": "networking.k8s.io/v1",
            "kind": "NetworkPolicy",
            "metadata": inside,
            "spec": {
                "podSelector": {},
                "policyTypes": ["Ingress", "Egress"],
                "ingress": [],
                "egress": [
                    {
                        "to": [dns, {"ipBlock": {"cidr": "169.254.20.10/32"}}],
                        "ports": [{"port": 53, "protocol": "UDP"}, {"port": 53, "protocol": "TCP"}],
                    }
                ],
            },
        },
        {
            "apiVersion": "v1",
            "kind": "ResourceQuota",
            "metadata": inside,
            "spec": {"hard": {"requests.nvidia.com/gpu": "16"}},
        },
    ]


# -- every kind of plan ------------------------------------------------------------------------------------------------


def everything(kind: str) -> list[dict[str, Any]]:
    """Returns everything that is applied for the plan of this kind, except the namespace."""
    whole, settings = every_kind()[kind]
    sources = [mount.source for mount in whole.mounts if isinstance(mount.source, VolumeSource)]
    return [
        manifests.owner_manifest(whole.run, settings, whole),
        *(storage.volume_manifest(source, settings) for source in sources),
        *filter(None, [each.claim_manifest(whole, settings, "2026-07-01") for each in (environments, cache)]),
        *manifests.run_manifests(whole, "some-uid", settings),
    ]


@pytest.mark.parametrize("kind", every_kind())
def test_the_owner_keeps_the_objects_of_its_run(kind: str) -> None:
    whole, settings = every_kind()[kind]
    owner = manifests.owner_manifest(whole.run, settings, whole)
    rendered = manifests.run_manifests(whole, "", settings)
    there = kept.with_objects(owner, rendered, "proof")
    assert there | {"binaryData": None} == owner | {"binaryData": None}
    assert there["binaryData"].items() >= owner.get("binaryData", {}).items()
    assert there == kept.with_objects(owner, rendered, "proof")
    there["metadata"]["uid"] = "some-uid"
    assert kept.objects(there, "proof") == manifests.run_manifests(whole, "some-uid", settings)


def test_what_others_put_into_an_owner_is_not_applied() -> None:
    whole, other = plan(role("master"), run=RUN), dataclasses.replace(RUN, id=1043)
    there = kept.with_objects(
        manifests.owner_manifest(RUN, SETTINGS, whole), manifests.run_manifests(whole, "", SETTINGS), "proof"
    )
    there["metadata"]["uid"] = "some-uid"
    assert len(kept.objects(there, "proof")) == 2
    elsewhere = {**there, "metadata": manifests.owner_manifest(other, SETTINGS)["metadata"] | {"uid": "another"}}
    foreign = kept.with_objects(there, [], "guessed")
    unsealed = {**there, "binaryData": {kept.OBJECTS: there["binaryData"][kept.OBJECTS]}}
    for wrong in (elsewhere, foreign, unsealed, {"metadata": there["metadata"]}):
        with pytest.raises(CloudRefused, match="cannot be read from its ConfigMap"):
            kept.objects(wrong, "proof")


def test_a_run_that_an_owner_cannot_keep_is_refused() -> None:
    chance = random.Random(7)
    whole = plan(role("master", env={f"N{n}": chance.randbytes(40_000).hex() for n in range(20)}), run=RUN)
    rendered = manifests.run_manifests(whole, "", SETTINGS)
    owner = manifests.owner_manifest(RUN, SETTINGS, whole)
    kept.with_objects(owner, rendered, "proof")
    with pytest.raises(CloudRefused, match="more than the 1 MiB"):
        kept.with_objects({**owner, "data": {"code-0": "x" * 500_000}}, rendered, "proof")


@pytest.mark.parametrize("kind", every_kind())
def test_everything_of_a_run_is_as_it_should_be(kind: str) -> None:
    assert everything(kind) == differences.read(kind)


def test_a_server_that_warms_up_is_ready_when_it_was_healthy_for_so_long() -> None:
    warm = role("server", restart="Always", endpoints=(Endpoint("predict", 8000, "/health", warm_up_seconds=9),))
    probe = task_of(made(warm)["Deployment", "demo-mnist-3-1042-server"])["readinessProbe"]
    assert (probe["periodSeconds"], probe["successThreshold"]) == (1, 9)


def test_nothing_is_expected_of_what_there_is_no_longer() -> None:
    assert {path.stem for path in differences.FOLDER.glob("*.yaml")} == set(every_kind())


# -- the real API server -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def line(plane: Plane) -> Iterator[tuple[Client, str]]:
    """A business line on the real API server, with everything that a line may have."""
    client, name = Client.connect(str(plane.kubeconfig)), f"dry-{secrets.token_hex(4)}"
    settings = Settings(
        portal="main",
        quota={"count/pods": "100"},
        largest_task={"cpu": "500m", "memory": "64Gi", "nvidia.com/gpu": "8"},
        dns_addresses=("169.254.20.10/32",),
    )
    for manifest in manifests.namespace_manifests(name, settings):
        client.apply(manifest, fieldValidation="Strict")
    priorities, runtimes = "/apis/scheduling.k8s.io/v1/priorityclasses", "/apis/node.k8s.io/v1/runtimeclasses"
    for priority in ("batch", "serving"):
        plane.request("POST", priorities, {"metadata": {"name": priority}, "value": 10})
    plane.request("POST", runtimes, {"metadata": {"name": "nvidia"}, "handler": "nvidia"})
    task = made(role("master"))["Job", "demo-mnist-3-1042-master"]["spec"]["template"]["spec"]
    for priority in ("batch", "serving"):
        spec = {**task, "priorityClassName": priority, "runtimeClassName": "nvidia"}
        pod = {"metadata": {"name": f"waits-for-{priority}"}, "spec": spec}
        # Also waits for its service account and for the quota's status, which controllers write.
        plane.until_admitted(f"/api/v1/namespaces/{name}/pods", pod)
    yield client, name
    # These are cluster-wide, and the line may be created again on this cluster.
    for path in (f"{priorities}/batch", f"{priorities}/serving", f"{runtimes}/nvidia"):
        plane.request("DELETE", path)
    client.delete(path_of("Namespace", name=name))


@pytest.mark.kube
@pytest.mark.parametrize("kind", every_kind())
def test_the_api_server_takes_every_manifest_and_pod_security_every_pod(line: tuple[Client, str], kind: str) -> None:
    client, namespace = line
    whole, settings = every_kind(namespace)[kind]
    strictly = {"dryRun": "All", "fieldValidation": "Strict"}
    client.apply(manifests.owner_manifest(whole.run, settings, whole), **strictly)
    made = manifests.run_manifests(whole, "00000000-0000-0000-0000-000000000000", settings)
    made += [storage.volume_manifest(m.source, settings) for m in whole.mounts if isinstance(m.source, VolumeSource)]
    made += filter(None, [each.claim_manifest(whole, settings, "2026-07-01") for each in (environments, cache)])
    # A Workload needs Kueue: see tests/kube/test_kueue.py.
    made = [each for each in made if not queueing.is_draft(each)]
    for each in client.apply_all(made, **strictly):
        if each["kind"] in ("Job", "Deployment", "StatefulSet", "Service", "Ingress", "NetworkPolicy"):
            assert Drift().is_as_applied(
                each["kind"], each["metadata"], queued=manifests.is_queued(each), ordered=queueing.is_ordered(each)
            )
    templates = [each["spec"]["template"] for each in made if "template" in each.get("spec", {})]
    assert len(templates) == len(whole.roles)
    for number, template in enumerate(templates):
        metadata = {**template["metadata"], "name": f"pod-{number}", "namespace": namespace}
        client.apply({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]}, **strictly)


@pytest.mark.kube
def test_pod_security_is_really_enforced(line: tuple[Client, str]) -> None:
    client, namespace = line
    pod = made(role("master"))["Job", "demo-mnist-3-1042-master"]["spec"]["template"]["spec"]
    pod["containers"][0]["securityContext"] = {**pod["containers"][0]["securityContext"], "privileged": True}
    metadata = {"name": "bold", "namespace": namespace}
    pod["containers"][0]["securityContext"]["allowPrivilegeEscalation"] = True
    with pytest.raises(CloudRefused, match=r'violates PodSecurity "restricted'):
        client.apply({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": pod}, dryRun="All")


if __name__ == "__main__":
    for kind in every_kind():
        differences.write(kind, everything(kind), everything(differences.BASE))
