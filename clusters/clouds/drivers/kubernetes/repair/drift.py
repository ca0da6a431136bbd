"""Detects changes by others to fields that the portal applied, using the `managedFields` of server-side apply. Pure.

A field of ours that others change or delete leaves our entry, and returns when it is applied again. Fields that others add are
in their own entries and are left alone. So metadata suffice to detect changes; for fields that every object of a kind has, even
those made while nobody watched.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from clusters.clouds.drivers.kubernetes.render import endpoints, names

Object = Mapping[str, Any]
# A tree of fields in the format of `fieldsV1`.
Fields = Mapping[str, Any]


def _all(*fields: str) -> Fields:
    return {f"f:{name}": {} for name in fields}


# The fields below `spec` that we apply to every object of a kind. Runs keep the objects of the release that started them: a field
# belongs here only if all releases of 1.x apply it, or runs of an older one would be reported as changed by hand.
_POLICY = _all("podSelector", "policyTypes", "ingress", "egress")
_APPLIED: Mapping[str, Fields] = {
    "Job": _all("parallelism", "completions", "suspend"),
    "Deployment": _all("replicas"),
    "StatefulSet": _all("replicas"),
    "Service": _all("selector", "ports"),
    "Ingress": _all("rules"),
    "NetworkPolicy": _POLICY,
    "Workload": _all("podSets", "queueName"),
}
# Kinds of objects of runs that are watched.
KINDS = frozenset(_APPLIED)
# Kueue owns these fields in Jobs that it manages.
_OF_QUEUES = {"f:suspend", "f:template"}
# The portal changes these in objects of a run in a queue, as another manager, as Kueue decides. The mirror looks after them.
_OF_DECISIONS = {"f:suspend", "f:replicas"}
# Of a Workload only what we apply to each is ours alone: Kueue writes the rest, such as a new value of its priority class.
_OF_WORKLOADS = frozenset(_APPLIED["Workload"])


def bounds(quota: Mapping[str, str] | None = None) -> dict[str, Fields]:
    """Returns the required objects of our namespaces with their fields, by kind; a ResourceQuota only for a `quota`."""
    found = {"NetworkPolicy": _POLICY, "LimitRange": _all("limits")}
    return {**found, "ResourceQuota": {"f:hard": _all(*quota)}} if quota else found


def has(metadata: Object, wanted: Fields) -> bool:
    """Returns whether all `wanted` fields are ours."""
    return _covers(_spec(_ours(metadata)), wanted)


class Drift:
    """Tracks which objects of runs have lost applied fields."""

    def __init__(self) -> None:
        # By uid: the time of our entry and its number of fields. The time changes when we apply something else, and stays when
        # others take fields out of the entry.
        self._known: dict[str, tuple[str, int]] = {}

    def is_as_applied(self, kind: str, metadata: Object, *, queued: bool = False, ordered: bool = False) -> bool:
        """Returns whether an object still has all our fields. `queued`: a Job in a Kueue queue. `ordered`: what makes pods of a
        run in one."""
        wanted = _APPLIED[kind]
        if ordered or kind == "Workload":
            metadata = _looked_at(metadata, _OF_WORKLOADS if kind == "Workload" else None)
            wanted = {name: tree for name, tree in wanted.items() if name not in _OF_DECISIONS}
        if queued or (kind == "Job" and _is_kueues(metadata)):
            return has(metadata, {name: tree for name, tree in wanted.items() if name not in _OF_QUEUES})
        if not has(metadata, wanted) or (kind == "Ingress" and not _asks(metadata)):
            return False
        now = version_of(metadata)
        known = self._known.get(metadata["uid"])
        if known is None and _is_younger_than_ours(metadata):
            # Changed while nobody watched: some of the fields may be ours.
            return False
        if known is None or known[0] != now[0] or known[1] < now[1]:
            self._known[metadata["uid"]] = known = now
        return known == now

    def forget(self, uid: str) -> None:
        self._known.pop(uid, None)


def _looked_at(metadata: Object, only: frozenset[str] | None) -> Object:
    """Returns metadata of which only certain fields below `spec` are compared."""

    def cut(entry: Object) -> Object:
        spec = {
            name: tree
            for name, tree in _spec(entry).items()
            if (name in only if only is not None else name not in _OF_DECISIONS)
        }
        return {**entry, "fieldsV1": {**(entry.get("fieldsV1") or {}), "f:spec": spec}}

    return {**metadata, "managedFields": [cut(each) for each in metadata.get("managedFields") or []]}


def version_of(metadata: Object) -> tuple[str, int]:
    """Returns when we last applied the object, and how many fields are still ours."""
    ours = _ours(metadata)
    return str(ours.get("time", "")), _size(_spec(ours)) + len(_annotations(ours))


def _asks(metadata: Object) -> bool:
    """Returns whether an Ingress to a task still makes the gateway authorize requests."""
    return metadata["name"].endswith(endpoints.TO_PORTAL) or any(
        f"f:{each}" in _annotations(_ours(metadata)) for each in endpoints.ASKS
    )


def _ours(metadata: Object) -> Object:
    for entry in metadata.get("managedFields") or []:
        of_all = not entry.get("subresource")
        if of_all and entry.get("manager") == names.MANAGER and entry.get("operation") == "Apply":
            found: Object = entry
            return found
    return {}


def _is_younger_than_ours(metadata: Object) -> bool:
    """Returns whether others set fields below `spec` after our apply. Changes by admission plugins count as ours."""
    since = _ours(metadata).get("time", "")
    return any(
        entry.get("manager") != names.MANAGER
        and entry.get("subresource") != "status"
        and entry.get("time", "") >= since
        for entry in metadata.get("managedFields") or []
        if _spec(entry)
    )


def _is_kueues(metadata: Object) -> bool:
    """Kueue may be configured to manage all Jobs, even without a queue."""
    return any(str(entry.get("manager")).startswith("kueue") for entry in metadata.get("managedFields") or [])


def _spec(entry: Object) -> Fields:
    return (entry.get("fieldsV1") or {}).get("f:spec") or {}


def _annotations(entry: Object) -> Fields:
    return ((entry.get("fieldsV1") or {}).get("f:metadata") or {}).get("f:annotations") or {}


def _covers(fields: Fields, wanted: Fields) -> bool:
    return all(name in fields and _covers(fields[name], tree) for name, tree in wanted.items())


def _size(fields: Fields) -> int:
    return len(fields) + sum(map(_size, fields.values()))
