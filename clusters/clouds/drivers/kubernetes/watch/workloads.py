"""Interprets the Jobs, Deployments and StatefulSets of a run: how many of their pods exist, and what prevents the others. Pure.

Pods that the API server refuses (quota, admission) never exist. Deployments report refusals in a condition, the others only in
Events, which are read for this alone: they never affect metering.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from clusters.clouds.drivers.kubernetes.render import names
from clusters.clouds.drivers.kubernetes.watch.job_history import JobState

Object = Mapping[str, Any]
Why = tuple[str, str]

# Kueue manages objects with this label, as those of runs that an earlier release started.
QUEUE = "kueue.x-k8s.io/queue-name"
QUOTA, ADMISSION, QUEUED, SUSPENDED = "NamespaceQuota", "AdmissionDenied", "QueuedByKueue", "Suspended"

_QUOTA = re.compile(r"exceeded quota: (\S+), requested: (\S+), used: (\S+), limited: (\S+)")
_WEBHOOK = re.compile(r'admission webhook "([^"]+)" denied the request: ?(.*)', re.DOTALL)
_FORBIDDEN = re.compile(r'pods? "[^"]*" is forbidden: (.*)', re.DOTALL)


@dataclass(frozen=True)
class Workload:
    """One role of a run. `wanted`, `made`: pods. `leaving`: being deleted. `why`: its status's reason for missing pods.
    `queue`: the Kueue queue of its run. `version`: of its spec. `stop`: whether it is to make no pods, and has none."""

    run_id: int
    uid: str
    kind: str
    namespace: str
    name: str
    role: str
    wanted: int
    made: int
    leaving: bool
    why: Why | None
    queue: str = ""
    version: int = 0
    stop: Literal["", "asked", "done"] = ""

    @property
    def complete(self) -> bool:
        return self.made >= self.wanted


def workload_of(kind: str, thing: Object) -> Workload | None:
    """Returns None for an object without our labels."""
    metadata, spec, status = thing["metadata"], thing["spec"], thing.get("status") or {}
    labels = metadata.get("labels") or {}
    run_id = names.run_id_of(labels)
    if run_id is None or names.ROLE not in labels:
        return None
    if kind == "Job":
        # With limited parallelism fewer pods are requested than there are tasks.
        left = (
            int(spec.get("completions", 1)) - int(status.get("succeeded", 0)) - _count(status.get("failedIndexes", ""))
        )
        wanted, made = min(int(spec.get("parallelism", 1)), left), int(status.get("active", 0))
    else:
        wanted, made = int(spec.get("replicas", 1)), int(status.get("replicas", 0))
    return Workload(
        run_id=run_id,
        uid=metadata["uid"],
        kind=kind,
        namespace=metadata["namespace"],
        name=metadata["name"],
        role=labels[names.ROLE],
        wanted=wanted,
        made=made,
        leaving="deletionTimestamp" in metadata,
        why=_why(kind, thing),
        queue=labels.get(names.QUEUE, ""),
        version=int(metadata.get("generation", 0)),
        stop=_stop(kind, thing),
    )


def _stop(kind: str, thing: Object) -> Literal["", "asked", "done"]:
    metadata, spec, status = thing["metadata"], thing["spec"], thing.get("status") or {}
    if kind == "Job":
        if not spec.get("suspend"):
            return ""
        # Only its controller says this, once it has deleted the pods.
        said = [
            each for each in status.get("conditions") or [] if each["type"] == "Suspended" and each["status"] == "True"
        ]
        return "done" if said and not status.get("active") else "asked"
    if spec.get("replicas", 1):
        return ""
    is_current = status.get("observedGeneration", 0) >= metadata.get("generation", 0)
    return "done" if is_current and not status.get("replicas") else "asked"


def job_state(job: Object, *, deleted: bool) -> JobState:
    """Returns a Job's state, which determines the fate of its pods."""
    if deleted or "deletionTimestamp" in job["metadata"]:
        return "gone"
    if not job["spec"].get("suspend"):
        return "live"
    return "stopped" if _is_ended_by_us(job["metadata"]) else "suspended"


def _why(kind: str, thing: Object) -> Why | None:
    if kind == "Job" and thing["spec"].get("suspend") and not _is_ended_by_us(thing["metadata"]):
        labels = thing["metadata"].get("labels") or {}
        if queue := labels.get(names.QUEUE) or labels.get(QUEUE):
            return QUEUED, in_queue(queue, thing["metadata"]["namespace"])
        return SUSPENDED, "Its Job is suspended: somebody stopped it, and nobody has resumed it."
    for each in (thing.get("status") or {}).get("conditions") or []:
        if each["type"] == "ReplicaFailure" and each["status"] == "True":
            return refusal(each.get("message") or "", thing["metadata"]["namespace"])
    return None


def in_queue(queue: str, namespace: str) -> str:
    return f"Waits in Kueue's queue “{queue}” of namespace {namespace}."


def refusal(text: str, namespace: str) -> Why:
    """Rewrites a controller's message about refused pods, so that people can act on it."""
    if found := _QUOTA.search(text):
        name, asked, used, limits = found.groups()
        needs = dict(part.split("=", 1) for part in asked.split(","))
        have, most = (dict(part.split("=", 1) for part in each.split(",")) for each in (used, limits))
        parts = [
            f"{what} {have.get(what, '0')} of {limit}"
            + (f" (a task needs {needs[what]})" if needs.get(what, "1") != "1" else "")
            for what, limit in most.items()
        ]
        return QUOTA, f"The quota of namespace {namespace} ({name}) is used up: {', '.join(parts)}."
    if found := _WEBHOOK.search(text):
        return ADMISSION, f"“{found[1]}” of the Kubernetes cluster does not admit its pods: {_end(found[2])}"
    why = found[1] if (found := _FORBIDDEN.search(text)) else text
    if why.startswith("violates PodSecurity"):
        return ADMISSION, f"Pod Security of namespace {namespace} does not admit its pods: {_end(why)}"
    if "usage per" in why:
        return ADMISSION, f"The limits of namespace {namespace} do not allow its pods: {_end(why)}"
    return ADMISSION, f"Kubernetes does not make its pods: {_end(why)}"


def _end(text: str) -> str:
    text = text.strip() or "no details"
    return text if text[-1] in ".!?" else f"{text}."


def _count(ranges: str) -> int:
    """Returns the number of indexes in a list such as "1,3-5"."""
    found = 0
    for part in ranges.split(",") if ranges else ():
        first, _, last = part.partition("-")
        found += int(last or first) - int(first) + 1
    return found


def _is_ended_by_us(metadata: Object) -> bool:
    """Returns whether we suspended the Job to end its run (by an Update of ours; for Kueue we suspend by Apply, or as another
    manager)."""
    return any(
        entry.get("manager") == names.MANAGER
        and entry.get("operation") == "Update"
        and "f:suspend" in ((entry.get("fieldsV1") or {}).get("f:spec") or {})
        for entry in metadata.get("managedFields") or []
    )
