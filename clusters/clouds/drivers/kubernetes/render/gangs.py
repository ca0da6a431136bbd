"""The gang of a run: the PodGroup with which kube-scheduler binds all of its pods or none. Pure.

Kubernetes counts the pods of a group that are alive. So a group that asks for all of them would keep the replacement of a failed
pod without a node as soon as another pod of the run has ended. It therefore asks for all of them only until they have nodes; then
`repair/upkeep.py` opens it, which means that it asks for one.
"""

from __future__ import annotations

from typing import Any

from clusters.clouds.drivers.base import Plan, RunRef
from clusters.clouds.drivers.kubernetes.render import names

Manifest = dict[str, Any]

GROUP, PLURAL, KIND = "scheduling.k8s.io", "podgroups", "PodGroup"
# The versions whose PodGroups have the fields below, newest first: Kubernetes 1.37 and 1.36.
VERSIONS = ("v1beta1", "v1alpha2")
# An open group holds no pod back.
OPEN = 1


def path(api: str, namespace: str, name: str = "") -> str:
    """Returns the path of a PodGroup, or of all in a namespace. `api`: group and version."""
    return "/".join(["/apis", api, "namespaces", namespace, PLURAL, *([name] if name else [])])


def name(run: RunRef) -> str:
    return names.owner_name(run)


def size(plan: Plan) -> int:
    """Returns how many pods must get nodes together; 0 for a run without a gang: its cloud keeps none, it has a single task, or
    its tasks know nothing of each other."""
    together = sum(role.together for role in plan.roles)
    return together if plan.gang and together > 1 and not any(role.is_apart for role in plan.roles) else 0


def manifest(run: RunRef, api: str, count: int, priority_class: str = "") -> Manifest:
    """Returns a group of which `count` pods get nodes together."""
    # From v1beta1 on, a group has the priority of its pods.
    priority = {"priorityClassName": priority_class} if priority_class and not api.endswith("alpha2") else {}
    return {
        "apiVersion": api,
        "kind": KIND,
        "metadata": {"name": name(run)},
        "spec": {**policy(count), **priority},
    }


def policy(count: int) -> Manifest:
    return {"schedulingPolicy": {"gang": {"minCount": count}}}
