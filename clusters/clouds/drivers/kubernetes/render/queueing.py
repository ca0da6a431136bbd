"""A run in a Kueue queue: one Workload asks for all of its tasks, so Kueue lets go all of them or none. Pure.

What makes the pods exists from the launch on, stopped, and carries no name of a queue, so Kueue lets it alone. Once the Workload
is admitted its templates get the labels and tolerations of the nodes that Kueue chose, and it is resumed.

The owner keeps a draft of the Workload: which version of Kueue's API is served may change while the run lives, and the pod
templates are those of the kept objects.
"""

from __future__ import annotations

import copy
import datetime as dt
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from clusters.clouds.drivers.base import CloudRefused, Plan
from clusters.clouds.drivers.kubernetes.render import names

Manifest = dict[str, Any]
Object = Mapping[str, Any]

GROUP = "kueue.x-k8s.io"
KIND = "Workload"
# Kueue's limit for one Workload.
MOST_ROLES = 8


def draft(plan: Plan, queue: str) -> Manifest:
    """Returns the Workload without what depends on the version of Kueue's API."""
    return {
        "apiVersion": GROUP,
        "kind": KIND,
        "metadata": {"name": names.workload_name(plan.run)},
        "spec": {"queueName": queue},
    }


def check(plan: Plan) -> None:
    """Raises CloudRefused for a run that Kueue cannot admit as one."""
    if len(plan.roles) > MOST_ROLES:
        raise CloudRefused(
            f"This has {len(plan.roles)} roles, and Kueue, which orders runs here, starts at most {MOST_ROLES} together."
        )


def is_draft(manifest: Object) -> bool:
    return bool(manifest["kind"] == KIND)


def is_ordered(manifest: Object) -> bool:
    """Returns whether this makes pods of a run that waits in a queue."""
    return names.QUEUE in (manifest["metadata"].get("labels") or {})


def priority_class(roles: Sequence[Object]) -> str:
    """Returns the priority class of the run's pods, "" for the cluster's own."""
    return next((str(found) for each in roles if (found := _template(each)["spec"].get("priorityClassName"))), "")


def workload(drafted: Object, roles: Sequence[Object], version: str) -> Manifest:
    """Returns the Workload of a run: a set of pods for each role."""
    spec = dict(drafted["spec"])
    if name := spec.pop("priorityClass", ""):
        spec |= (
            {"priorityClassName": name, "priorityClassSource": "scheduling.k8s.io/priorityclass"}
            if version == "v1beta1"
            else {"priorityClassRef": {"group": "scheduling.k8s.io", "kind": "PriorityClass", "name": name}}
        )
    spec["podSets"] = [
        {"name": each["metadata"]["labels"][names.ROLE], "count": _count(each), "template": _bare(_template(each))}
        for each in roles
    ]
    return {**drafted, "apiVersion": f"{GROUP}/{version}", "spec": spec}


def stop(manifest: Object) -> Manifest:
    """Returns the change that ends the pods of an object."""
    return {"suspend": True} if manifest["kind"] == "Job" else {"replicas": 0}


def stopped(manifest: Object) -> Manifest:
    """Returns the object without pods."""
    return {**manifest, "spec": {**manifest["spec"], **stop(manifest)}}


def assigned(status: Object) -> dict[str, list[str]]:
    """Returns the flavors that an admitted Workload has for each role."""
    found = ((status.get("admission") or {}).get("podSetAssignments")) or []
    return {each["name"]: list(dict.fromkeys((each.get("flavors") or {}).values())) for each in found}


def let_go(manifest: Object, status: Object, flavors: Mapping[str, Object]) -> Manifest:
    """Returns the object with the labels and tolerations of the nodes that its role was given. `flavors`: the ResourceFlavors."""
    role = manifest["metadata"]["labels"][names.ROLE]
    made: Manifest = copy.deepcopy(dict(manifest))
    template = _template(made)
    for name in assigned(status).get(role, ()):
        spec = flavors[name].get("spec") or {}
        _add(template, {"nodeSelector": spec.get("nodeLabels"), "tolerations": spec.get("tolerations")})
    for check in status.get("admissionChecks") or []:
        for update in check.get("podSetUpdates") or []:
            if update["name"] == role:
                _add(template, update)
    return made


def _add(template: Manifest, more: Object) -> None:
    for kind in ("labels", "annotations"):
        if more.get(kind):
            template["metadata"][kind] = {**template["metadata"].get(kind, {}), **more[kind]}
    spec = template["spec"]
    if more.get("nodeSelector"):
        spec["nodeSelector"] = {**spec.get("nodeSelector", {}), **more["nodeSelector"]}
    if more.get("tolerations"):
        has: list[Object] = spec.get("tolerations", [])
        spec["tolerations"] = [*has, *(each for each in more["tolerations"] if each not in has)]


def names_of(status: Object) -> Collection[str]:
    """Returns all flavors of an admitted Workload."""
    return {name for each in assigned(status).values() for name in each}


def condition(kind: str, status: str, reason: str, message: str, at: dt.datetime) -> dict[str, str]:
    """Returns a condition of a Workload that changes at `at`."""
    since = at.astimezone(dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {"type": kind, "status": status, "reason": reason, "message": message, "lastTransitionTime": since}


def _count(manifest: Object) -> int:
    return int(manifest["spec"]["parallelism" if manifest["kind"] == "Job" else "replicas"])


def _template(manifest: Object) -> Any:
    return manifest["spec"]["template"]


def _bare(template: Object) -> Manifest:
    """Returns a template with the metadata that a Workload may have."""
    labels = template["metadata"].get("labels") or {}
    return {"metadata": {"labels": labels}, "spec": template["spec"]}
