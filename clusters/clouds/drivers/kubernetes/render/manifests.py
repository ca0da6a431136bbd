"""Turns a plan into objects for the API server: plain dictionaries, one object per role, never one per task. Pure.

One owner (a ConfigMap) owns everything of a run, so deletion is one call and "nothing is left" is one event: the garbage
collector removes the owner last. The tasks of a role differ only in TASK_INDEX, which comes from a label that Kubernetes sets on
the pod. Variables shared by all tasks are in the owner, and pods refer to them.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from typing import Any

from clusters.clouds.drivers.base import CloudRefused, LocalSource, Plan, RolePlan, RunRef, VolumeSource, restart_policy
from clusters.clouds.drivers.kubernetes.render import (
    cache,
    code,
    endpoints,
    environments,
    gangs,
    names,
    network_policy,
    pods,
    queueing,
    storage,
)
from clusters.clouds.drivers.kubernetes.settings import Settings, quantity
from clusters.clouds.drivers.kubernetes.watch.workloads import QUEUE

Manifest = dict[str, Any]

_JOB_INDEX = "metadata.labels['batch.kubernetes.io/job-completion-index']"
_SET_INDEX = "metadata.labels['apps.kubernetes.io/pod-index']"
# Name of a namespace's LimitRange, NetworkPolicy and ResourceQuota.
LIMITS = "gpu-cloud"
SECURITY = {f"pod-security.kubernetes.io/{mode}": "restricted" for mode in ("enforce", "audit", "warn")}
_PLAIN = ("cpu", "memory", "ephemeral-storage")
_WHO_BREAKS_OFF = {"type": "DisruptionTarget", "status": "True"}


def namespace_manifests(namespace: str, settings: Settings) -> list[Manifest]:
    """Returns a business line's namespace: Pod Security "restricted", size limits, no traffic but DNS."""
    labels = {names.PORTAL: settings.portal}
    container: Manifest = {
        "type": "Container",
        "default": {"cpu": "1", "memory": "1Gi"},
        "defaultRequest": {"cpu": "100m", "memory": "128Mi"},
    }
    if disk := settings.task_disk:
        container["default"]["ephemeral-storage"] = disk["limits"]
        container["defaultRequest"]["ephemeral-storage"] = disk["requests"]
    if settings.largest_task:
        # No maximum for GPUs: a resource with a maximum and no default gets the maximum, so every helper would hold eight.
        largest = {name: value for name, value in settings.largest_task.items() if name in _PLAIN}
        container["max"] = largest
        for kind in ("default", "defaultRequest"):
            wanted = container[kind]
            container[kind] = {n: min(v, largest.get(n, v), key=quantity) for n, v in wanted.items()}
    claim = {"type": "PersistentVolumeClaim", "max": {"storage": settings.largest_volume}}
    made: list[Manifest] = [
        {
            "apiVersion": "v1",
            "kind": "Namespace",
            "metadata": {"name": namespace, "labels": labels | SECURITY},
        },
        {
            "apiVersion": "v1",
            "kind": "LimitRange",
            "metadata": {"name": LIMITS, "namespace": namespace, "labels": labels},
            "spec": {"limits": [container, claim]},
        },
        {
            "apiVersion": "networking.k8s.io/v1",
            "kind": "NetworkPolicy",
            "metadata": {"name": LIMITS, "namespace": namespace, "labels": labels},
            "spec": {
                "podSelector": {},
                "policyTypes": ["Ingress", "Egress"],
                # Explicitly empty, so that rules added by others change a field of ours.
                "ingress": [],
                "egress": [network_policy.dns(settings)],
            },
        },
    ]
    if settings.quota:
        made.append(
            {
                "apiVersion": "v1",
                "kind": "ResourceQuota",
                "metadata": {"name": LIMITS, "namespace": namespace, "labels": labels},
                "spec": {"hard": dict(settings.quota)},
            }
        )
    return made


def foreign(namespace: Manifest, settings: Settings) -> str:
    """Returns why an existing namespace cannot be used, with advice; "" if it has this portal's label."""
    metadata = namespace["metadata"]
    name, whose = metadata["name"], (metadata.get("labels") or {}).get(names.PORTAL)
    if whose == settings.portal:
        return ""
    is_whose = f"belongs to another portal, “{whose}”" if whose else "exists already and is not this portal's"
    overwrite = "--overwrite " if whose else ""
    return (
        f"The namespace “{name}” {is_whose}. An administrator gives the business line another one, or hands this one over with: "
        f"kubectl label {overwrite}namespace {name} {names.PORTAL}={settings.portal}"
    )


def owner_manifest(run: RunRef, settings: Settings, plan: Plan | None = None) -> Manifest:
    """Returns the owner. It exists from the launch until the database knows that the run is gone, for which its finalizer waits.
    Without `plan`: the owner of a run without objects.

    It is immutable, so it needs no repair, and kubelets do not watch it.
    """
    shared, binary = ({**plan.shared, **code.held(plan)}, environments.packed(plan)) if plan else ({}, {})
    uses = {names.ENVIRONMENT: environments.key(plan, settings)} if plan and plan.environment else {}
    if plan and (shared_input := cache.key(plan, settings)):
        uses[names.CACHE] = shared_input
    return {
        "immutable": True,
        **({"data": shared} if shared else {}),
        **({"binaryData": binary} if binary else {}),
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": names.owner_name(run),
            "namespace": run.namespace,
            "labels": {**names.run_labels(settings.portal, run), names.OWNER: "run", **uses},
            "finalizers": [names.TOLD],
            **({"annotations": {names.LIFE: str(run.life)}} if run.life else {}),
        },
    }


def workloads(plan: Plan) -> list[tuple[str, str]]:
    """Returns kind and name of each role's workload."""
    return [(_kind(role), names.role_name(plan.run, role.role)) for role in plan.roles]


def _kind(role: RolePlan) -> str:
    return "Job" if role.restart == "OnFailure" else "Deployment" if role.count == 1 else "StatefulSet"


def run_manifests(plan: Plan, owner_uid: str, settings: Settings) -> list[Manifest]:
    """Returns all objects of a run but its owner, in any order. Raises CloudRefused for what cannot run on Kubernetes."""
    check(plan, settings)
    made = [*_service(plan, settings), *_network(plan, settings), *storage.manifests(plan, settings)]
    made += endpoints.manifests(plan, settings)
    made.append(_registries(plan))
    made += [_role(plan, role, settings) for role in plan.roles]
    if settings.kueue_queue:
        made.append(queueing.draft(plan, settings.kueue_queue))
    if count := gangs.size(plan):
        made.append(gangs.manifest(plan.run, plan.gang, count, pods.priority_class(plan, settings)))
    return of_run(made, plan.run, owner_uid, settings.portal)


def secret_manifests(plan: Plan, owner_uid: str, settings: Settings) -> list[Manifest]:
    """Returns the Secrets of a run, which every apply renders anew: passwords change while it runs."""
    return of_run([*storage.secret_manifest(plan, settings), _registries(plan)], plan.run, owner_uid, settings.portal)


def of_run(made: list[Manifest], run: RunRef, owner_uid: str, portal: str) -> list[Manifest]:
    """Returns `made` as objects of a run: with its labels, in its namespace, owned by its owner."""
    reference = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "name": names.owner_name(run),
        "uid": owner_uid,
        "blockOwnerDeletion": True,
    }
    labels = names.run_labels(portal, run)
    for manifest in made:
        metadata = manifest["metadata"]
        metadata["labels"] = {**labels, **metadata.get("labels", {})}
        if manifest["kind"] != "PersistentVolume":  # it has no namespace, so nothing in one can own it
            metadata["namespace"] = run.namespace
            metadata["ownerReferences"] = [reference]
    return made


def _registries(plan: Plan) -> Manifest:
    """Returns the pull secret, empty or not: pods cannot get one later, and kubelets read it at every pull."""
    auths = {_registry(host): _login(*login) for host, login in sorted(plan.registries.items())}
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": names.registries_name(plan.run)},
        "type": "kubernetes.io/dockerconfigjson",
        "stringData": {".dockerconfigjson": json.dumps({"auths": auths}, separators=(",", ":"))},
    }


def _registry(host: str) -> str:
    """Returns the registry's name in Docker's configuration."""
    return "https://index.docker.io/v1/" if host == "docker.io" else host


def _login(username: str, password: str) -> Mapping[str, str]:
    both = base64.b64encode(f"{username}:{password}".encode()).decode()
    return {"username": username, "password": password, "auth": both}


def is_queued(manifest: Manifest) -> bool:
    """True for a Job that Kueue itself starts: those of runs that an earlier release started."""
    return manifest["kind"] == "Job" and QUEUE in manifest["metadata"]["labels"]


def check(plan: Plan, settings: Settings) -> None:
    """Raises CloudRefused for what Kubernetes would never run, or would refuse unnoticed when a controller makes the pod."""
    if not plan.image.container:
        raise CloudRefused(f"Image {plan.image.name} has no container image; it can run on one machine only.")
    for mount in plan.mounts:
        if isinstance(mount.source, LocalSource):
            raise CloudRefused(
                f"{mount.source.path} is a folder of the portal's own machine, which the nodes of a Kubernetes cluster "
                "cannot reach; use a datastore of kind S3 or NFS, or a volume."
            )
        if isinstance(mount.source, VolumeSource):
            _check_volume(mount.source, plan, settings)
    if settings.kueue_queue:
        queueing.check(plan)
    network_policy.check(plan, settings)
    environments.check(plan, settings)
    cache.check(plan, settings)
    for role in plan.roles:
        held: dict[str, float] = {name: quantity(count) for name, count in role.demand.extra}
        held |= {"cpu": role.cpu_milli / 1000, "memory": role.memory_mb * 2**20, role.demand.resource: role.gpus}
        for name, largest in (settings.largest_task or {}).items():
            if held.get(name, 0) > quantity(largest):
                sentence = f"A {role.role} asks for more {name} than the {largest} that one task may have here."
                raise CloudRefused(f"{sentence} Choose a smaller flavor.")


def _check_volume(source: VolumeSource, plan: Plan, settings: Settings) -> None:
    volume = source.volume
    if volume.namespace != plan.run.namespace:
        raise CloudRefused(
            f"The volume of datastore {volume.datastore} lies in namespace {volume.namespace}, and this runs in "
            f"{plan.run.namespace}; use another datastore."
        )
    if source.access_mode == "ReadWriteOnce" and (tasks := sum(role.count for role in plan.roles)) > 1:
        raise CloudRefused(
            f"The volume of datastore {volume.datastore} is mounted by one task at a time, and this run has {tasks}; use one "
            "with ReadWriteMany."
        )
    check_volume(source, settings)


def check_volume(source: VolumeSource, settings: Settings) -> None:
    """Raises CloudRefused for a volume that the administrators do not allow here."""
    name = source.volume.datastore
    if settings.storage_classes and source.storage_class not in settings.storage_classes:
        offered = ", ".join(settings.storage_classes)
        what = f"the storage class “{source.storage_class}”" if source.storage_class else "a default storage class"
        raise CloudRefused(f"Datastore {name}: this Kubernetes cluster does not offer {what}; it offers {offered}.")
    if quantity(source.size) > quantity(settings.largest_volume):
        raise CloudRefused(f"Datastore {name}: a volume may have at most {settings.largest_volume} here.")


def _failure_rules(plan: Plan, role: RolePlan) -> list[Manifest]:
    """Counts restarts as base/restart_policy.py does. Tasks that work together end with an error when another is killed,
    for which a Job has no rule: there the portal decides, before the Job's back-off of ten seconds is over."""
    rules: list[Manifest] = [{"action": "Ignore", "onPodConditions": [_WHO_BREAKS_OFF]}]
    if role.retries is None and (role.is_apart or _is_single(plan)):
        codes = {"containerName": "task", "operator": "NotIn", "values": sorted(restart_policy.FROM_OUTSIDE)}
        rules.append({"action": "FailIndex", "onExitCodes": codes})
    return rules


def _service(plan: Plan, settings: Settings) -> list[Manifest]:
    """Returns the headless Service that gives every task a stable address, even before it is ready. Omitted for a single task
    without references to it and for independent tasks: three controllers would rewrite its address lists at each start and end
    of a task."""
    run = plan.run
    told = (*plan.shared.values(), *(value for role in plan.roles for value in role.env.values()))
    are_apart = _is_single(plan) or all(role.at_once for role in plan.roles)
    if are_apart and not any(names.base_name(run) in value for value in told):
        return []
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": names.base_name(run)},
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": names.run_selector(settings.portal, run),
            "ports": [{"name": "task", "port": names.PORT, "protocol": "TCP"}],
        },
    }
    return [service]


def _network(plan: Plan, settings: Settings) -> list[Manifest]:
    """Returns the policy for traffic beyond DNS, which the namespace allows; none for a single task without such traffic."""
    ingress, egress = network_policy.ingress(plan, settings), network_policy.egress(plan, settings)
    if _is_single(plan) and len(ingress) == len(egress) == 1:
        return []  # both are about other tasks of the run
    policy = {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": names.base_name(plan.run)},
        "spec": {
            "podSelector": network_policy.same_run(plan, settings),
            "policyTypes": ["Ingress", "Egress"],
            "ingress": ingress,
            "egress": egress,
        },
    }
    return [policy]


def _is_single(plan: Plan) -> bool:
    return sum(role.count for role in plan.roles) == 1


def _role(plan: Plan, role: RolePlan, settings: Settings) -> Manifest:
    labels = {
        names.ROLE: role.role,
        f"{names.COMMON}/component": role.role,
        **({names.QUEUE: settings.kueue_queue} if settings.kueue_queue else {}),
    }
    metadata = {"name": names.role_name(plan.run, role.role), "labels": labels}
    selector = {"matchLabels": {**names.run_selector(settings.portal, plan.run), names.ROLE: role.role}}
    if role.restart == "OnFailure":
        return {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": metadata,
            "spec": {
                "suspend": False,
                "completionMode": "Indexed",
                "completions": role.count,
                "parallelism": role.together,
                "backoffLimitPerIndex": restart_policy.KILLS if role.retries is None else role.retries,
                # The portal ends the run when one task has failed too often; until then the others continue.
                "maxFailedIndexes": role.count,
                "podReplacementPolicy": "Failed",
                "podFailurePolicy": {"rules": _failure_rules(plan, role)},
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
