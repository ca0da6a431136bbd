"""From a plan to what the API server is given: plain dictionaries, one object per role, never one per task. Pure.

Everything of a run belongs to one owner (a ConfigMap), so that its deletion is one call and "nothing is left" is one
event: the garbage collector removes the owner last. The tasks of a role differ by TASK_INDEX alone, which comes from a
label that Kubernetes puts on the pod.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

from clusters.clouds.base import CloudRefused, LocalSource, NfsSource, Plan, RolePlan, RunRef, S3Source
from clusters.clouds.kubernetes import names, pods, storage
from clusters.clouds.kubernetes.settings import Settings

Manifest = dict[str, Any]

_JOB_INDEX = "metadata.labels['batch.kubernetes.io/job-completion-index']"
_SET_INDEX = "metadata.labels['apps.kubernetes.io/pod-index']"
_WHO_BREAKS_OFF = {"type": "DisruptionTarget", "status": "True"}


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
                "template": pods.template(plan, role, settings, index=_JOB_INDEX),
            },
        }
    if role.count == 1:
        template = pods.template(plan, role, settings, index="")
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
            "template": pods.template(plan, role, settings, index=_SET_INDEX),
        },
    }
