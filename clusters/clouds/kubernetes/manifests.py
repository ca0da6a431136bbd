"""From a plan to what the API server is given: plain dictionaries, one object per role, never one per task. Pure.

Everything of a run belongs to one owner (a ConfigMap), so that its deletion is one call and "nothing is left" is one
event: the garbage collector removes the owner last. The tasks of a role differ by TASK_INDEX alone, which comes from a
label that Kubernetes puts on the pod.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from clusters.clouds.base import CloudRefused, LocalSource, NfsSource, Plan, RolePlan, RunRef, S3Source, literal
from clusters.clouds.kubernetes import names, storage

Manifest = dict[str, Any]

GPU = "nvidia.com/gpu"
GPU_MODEL = "nvidia.com/gpu.product"
# Where programs look for data; without a datastore it is an empty folder that goes with the pod.
SCRATCH = ("/elearn/input", "/elearn/output")
SHARED_MEMORY = "/dev/shm"  # noqa: S108 — a volume of the pod's own, for data loaders
USER = 1000

_JOB_INDEX = "metadata.labels['batch.kubernetes.io/job-completion-index']"
_SET_INDEX = "metadata.labels['apps.kubernetes.io/pod-index']"
_WHO_BREAKS_OFF = {"type": "DisruptionTarget", "status": "True"}


@dataclass(frozen=True)
class Settings:
    """What an administrator decides once for a Kubernetes cluster.

    `portal` names this installation. `quota` is the `hard` of a ResourceQuota in every business line's namespace, `{}` for
    none: appcodes have quotas of their own. `runtime_class` is that of tasks with GPUs.
    """

    portal: str = "portal"
    storage_image: str = "gpu-cloud/rclone:1.75"
    runtime_class: str = ""
    priority_class: str = ""
    image_pull_policy: str = "IfNotPresent"
    store_seconds: int = 120
    quota: Mapping[str, str] | None = None


def namespace_manifests(namespace: str, settings: Settings) -> list[Manifest]:
    """A business line: Pod Security "restricted", and no traffic but DNS unless a run allows it."""
    labels = {names.PORTAL: settings.portal}
    security = {f"pod-security.kubernetes.io/{mode}": "restricted" for mode in ("enforce", "audit", "warn")}
    dns = [{"port": 53, "protocol": protocol} for protocol in ("UDP", "TCP")]
    made: list[Manifest] = [
        {
            "apiVersion": "v1",
            "kind": "Namespace",
            "metadata": {"name": namespace, "labels": labels | security},
        },
        {
            "apiVersion": "v1",
            "kind": "LimitRange",
            "metadata": {"name": "gpu-cloud", "namespace": namespace, "labels": labels},
            "spec": {
                "limits": [
                    {
                        "type": "Container",
                        "default": {"cpu": "1", "memory": "1Gi"},
                        "defaultRequest": {"cpu": "100m", "memory": "128Mi"},
                    }
                ]
            },
        },
        {
            "apiVersion": "networking.k8s.io/v1",
            "kind": "NetworkPolicy",
            "metadata": {"name": "gpu-cloud", "namespace": namespace, "labels": labels},
            "spec": {"podSelector": {}, "policyTypes": ["Ingress", "Egress"], "egress": [{"ports": dns}]},
        },
    ]
    if settings.quota:
        made.append(
            {
                "apiVersion": "v1",
                "kind": "ResourceQuota",
                "metadata": {"name": "gpu-cloud", "namespace": namespace, "labels": labels},
                "spec": {"hard": dict(settings.quota)},
            }
        )
    return made


def owner_manifest(run: RunRef, settings: Settings) -> Manifest:
    """Exists from the launch until the database knows that the run is gone (that is what its finalizer waits for)."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": names.owner_name(run),
            "namespace": run.namespace,
            "labels": {**names.run_labels(settings.portal, run), names.OWNER: "run"},
            "finalizers": [names.TOLD],
        },
    }


def run_manifests(plan: Plan, owner_uid: str, settings: Settings) -> list[Manifest]:
    """Everything of a run but its owner, in no order that matters. Raises CloudRefused for what cannot run on Kubernetes."""
    check(plan)
    made = [_service(plan.run), _network(plan), *storage.manifests(plan)]
    made += [_role(plan, role, settings) for role in plan.roles]
    reference = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "name": names.owner_name(plan.run),
        "uid": owner_uid,
        "blockOwnerDeletion": True,
    }
    labels = names.run_labels(settings.portal, plan.run)
    for manifest in made:
        metadata = manifest["metadata"]
        metadata["labels"] = {**labels, **metadata.get("labels", {})}
        if manifest["kind"] != "PersistentVolume":  # it has no namespace, so nothing in one can own it
            metadata["namespace"] = plan.run.namespace
            metadata["ownerReferences"] = [reference]
    return made


def check(plan: Plan) -> None:
    if not plan.image.container:
        raise CloudRefused(f"Image {plan.image.name} has no container image; it can run on one machine only.")
    for mount in plan.mounts:
        if isinstance(mount.source, LocalSource):
            raise CloudRefused(
                f"{mount.source.path} is a folder of the portal's own machine, which the nodes of a Kubernetes cluster "
                "cannot reach; use a datastore of kind S3 or NFS."
            )


def _service(run: RunRef) -> Manifest:
    """Headless: it only gives every task a stable address, from before the task is ready."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": names.base_name(run)},
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": {names.RUN_ID: str(run.id)},
            "ports": [{"name": "task", "port": names.PORT, "protocol": "TCP"}],
        },
    }


def _network(plan: Plan) -> Manifest:
    """Tasks of a run reach each other on any port, and the ports of their datastores."""
    same_run = [{"podSelector": {"matchLabels": {names.RUN_ID: str(plan.run.id)}}}]
    ports = sorted({port for mount in plan.mounts if (port := _storage_port(mount.source))})
    egress: list[Manifest] = [{"to": same_run}]
    if ports:
        egress.append({"ports": [{"port": port, "protocol": "TCP"} for port in ports]})
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": names.base_name(plan.run)},
        "spec": {
            "podSelector": {"matchLabels": {names.RUN_ID: str(plan.run.id)}},
            "policyTypes": ["Ingress", "Egress"],
            "ingress": [{"from": same_run}],
            "egress": egress,
        },
    }


def _storage_port(source: S3Source | NfsSource | LocalSource) -> int | None:
    """NFS is mounted by the node, to which no policy applies."""
    if not isinstance(source, S3Source):
        return None
    url = urlsplit(source.endpoint)
    return url.port or (80 if url.scheme == "http" else 443)


def _role(plan: Plan, role: RolePlan, settings: Settings) -> Manifest:
    metadata = {"name": names.role_name(plan.run, role.role), "labels": {names.ROLE: role.role}}
    selector = {"matchLabels": {names.RUN_ID: str(plan.run.id), names.ROLE: role.role}}
    if role.restart == "OnFailure":
        return {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": metadata,
            "spec": {
                "completionMode": "Indexed",
                "completions": role.count,
                "parallelism": role.count,
                "backoffLimitPerIndex": role.retries,
                # The portal ends the run when one task has failed too often; until then the others go on.
                "maxFailedIndexes": role.count,
                "podReplacementPolicy": "Failed",
                "podFailurePolicy": {"rules": [{"action": "Ignore", "onPodConditions": [_WHO_BREAKS_OFF]}]},
                "template": _pod(plan, role, settings, index=_JOB_INDEX),
            },
        }
    if role.count == 1:
        template = _pod(plan, role, settings, index="")
        template["spec"]["hostname"] = names.host_name(plan.run, role.role, 0)
        return {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": metadata,
            # Recreate: two pods of one name must never be alive at once.
            "spec": {"replicas": 1, "strategy": {"type": "Recreate"}, "selector": selector, "template": template},
        }
    return {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": metadata,
        "spec": {
            "replicas": role.count,
            "podManagementPolicy": "Parallel",
            "serviceName": names.base_name(plan.run),
            "selector": selector,
            "template": _pod(plan, role, settings, index=_SET_INDEX),
        },
    }


def _pod(plan: Plan, role: RolePlan, settings: Settings, *, index: str) -> Manifest:
    """The template of a role's pods. `index` is the field that holds TASK_INDEX, "" where it is always 0."""
    stored = storage.pod_parts(plan, settings.storage_image, settings.image_pull_policy)
    taken = {mount.mount_path for mount in plan.mounts}
    scratch = [path for path in SCRATCH if path not in taken]
    spec: Manifest = {
        "subdomain": names.base_name(plan.run),
        "restartPolicy": "Never" if role.restart == "OnFailure" else "Always",
        "terminationGracePeriodSeconds": plan.grace_seconds + (settings.store_seconds if stored.stores else 0),
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": USER,
            "runAsGroup": USER,
            "fsGroup": USER,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [
            {
                "name": "task",
                "image": plan.image.container,
                "imagePullPolicy": settings.image_pull_policy,
                # Not `args`: whatever the image starts by itself, this is run instead. kubelet expands $(NAME) here too.
                "command": [literal(word) for word in role.argv],
                "env": _environment(role, index),
                "ports": [{"name": "task", "containerPort": names.PORT, "protocol": "TCP"}],
                "resources": _resources(role),
                "securityContext": storage.CONFINED,
                "terminationMessagePolicy": "FallbackToLogsOnError",
                "volumeMounts": [
                    {"name": "tmp", "mountPath": storage.TMP},
                    {"name": "shm", "mountPath": SHARED_MEMORY},
                    *({"name": f"scratch{n}", "mountPath": path} for n, path in enumerate(scratch)),
                    *stored.mounts,
                ],
            }
        ],
        "volumes": [
            {"name": "tmp", "emptyDir": {}},
            {"name": "shm", "emptyDir": {"medium": "Memory"}},
            *({"name": f"scratch{n}", "emptyDir": {}} for n, _ in enumerate(scratch)),
            *stored.volumes,
        ],
    }
    if stored.init:
        spec["initContainers"] = stored.init
    if settings.priority_class:
        spec["priorityClassName"] = settings.priority_class
    if role.gpus:
        spec["tolerations"] = [{"key": GPU, "operator": "Exists", "effect": "NoSchedule"}]
        if role.gpu_model:
            spec["nodeSelector"] = {GPU_MODEL: role.gpu_model}
        if settings.runtime_class:
            spec["runtimeClassName"] = settings.runtime_class
    return {
        "metadata": {
            "labels": names.role_labels(settings.portal, plan.run, role.role),
            "finalizers": [names.METERING],
        },
        "spec": spec,
    }


def _environment(role: RolePlan, index: str) -> list[Manifest]:
    """TASK_INDEX stands first: a value can only refer to what stands before it."""
    first: Manifest = {"name": "TASK_INDEX", "value": "0"}
    if index:
        first = {"name": "TASK_INDEX", "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": index}}}
    ours = {"HOME": storage.TMP, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    if not role.gpus:
        # An image that asks for all GPUs would otherwise see those of others.
        ours["NVIDIA_VISIBLE_DEVICES"] = "void"
    return [first, *({"name": name, "value": value} for name, value in {**ours, **role.env}.items())]


def _resources(role: RolePlan) -> Manifest:
    """Requests equal limits, so that a task has what it is billed for and is evicted last."""
    held = {"cpu": f"{role.cpu_milli}m", "memory": f"{role.memory_mb}Mi"}
    if role.gpus:
        held[GPU] = str(role.gpus)
    return {"requests": dict(held), "limits": held}
