"""Whether an object still has what the portal said of it, by the `managedFields` that server-side apply keeps. Pure.

A field of ours that somebody changes or deletes leaves our entry, and comes back when it is applied again. What others add stands
in entries of theirs and is left alone. So this is seen of objects of which nothing but metadata are read, too, and for the fields
that all objects of a kind have also after a time of not watching.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from clusters.clouds.drivers.kubernetes.render import endpoints, names

Object = Mapping[str, Any]
# A tree of fields, as `fieldsV1` writes them.
Fields = Mapping[str, Any]


def _all(*fields: str) -> Fields:
    return {f"f:{name}": {} for name in fields}


# What we say beneath `spec` of every object of a kind.
_POLICY = _all("podSelector", "policyTypes", "ingress", "egress")
_APPLIED: Mapping[str, Fields] = {
    "Job": _all("parallelism", "completions", "suspend"),
    "Deployment": _all("replicas"),
    "StatefulSet": _all("replicas"),
    "Service": _all("selector", "ports"),
    "Ingress": _all("rules"),
    "NetworkPolicy": _POLICY,
}
# These belong to Kueue in Jobs that it manages.
_OF_QUEUES = {"f:suspend", "f:template"}


def bounds(quota: Mapping[str, str] | None = None) -> dict[str, Fields]:
    """What there must be in every namespace of ours, by kind; a ResourceQuota where `quota` has something."""
    found = {"NetworkPolicy": _POLICY, "LimitRange": _all("limits")}
    return {**found, "ResourceQuota": {"f:hard": _all(*quota)}} if quota else found


def has(metadata: Object, wanted: Fields) -> bool:
    """Whether all of `wanted` is ours."""
    return _covers(_spec(_ours(metadata)), wanted)


class Drift:
    """Which objects of runs have lost something that was applied."""

    def __init__(self) -> None:
        # By uid: when our entry was written last, and how many fields it had then. That time changes when we apply something
        # else, and stays when others take fields out of the entry.
        self._known: dict[str, tuple[str, int]] = {}

    def is_as_applied(self, kind: str, metadata: Object, *, queued: bool = False) -> bool:
        """`queued`: a Job that waits in a queue of Kueue."""
        wanted = _APPLIED[kind]
        if queued or (kind == "Job" and _is_kueues(metadata)):
            return has(metadata, {name: tree for name, tree in wanted.items() if name not in _OF_QUEUES})
        if not has(metadata, wanted) or (kind == "Ingress" and not _asks(metadata)):
            return False
        now = version_of(metadata)
        known = self._known.get(metadata["uid"])
        if known is None and _is_younger_than_ours(metadata):
            # Nobody watched: some of our fields may be among those.
            return False
        if known is None or known[0] != now[0] or known[1] < now[1]:
            self._known[metadata["uid"]] = known = now
        return known == now

    def forget(self, uid: str) -> None:
        self._known.pop(uid, None)


def version_of(metadata: Object) -> tuple[str, int]:
    """When we applied it last, and how many of those fields are still ours."""
    ours = _ours(metadata)
    return str(ours.get("time", "")), _size(_spec(ours)) + len(_annotations(ours))


def _asks(metadata: Object) -> bool:
    """Whether the gateway is still told to ask who comes, by an Ingress that leads to a task."""
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
    """Whether others have set something beneath `spec` since we applied it. What admission made of it then bears our name."""
    since = _ours(metadata).get("time", "")
    return any(
        entry.get("manager") != names.MANAGER
        and entry.get("subresource") != "status"
        and entry.get("time", "") >= since
        for entry in metadata.get("managedFields") or []
        if _spec(entry)
    )


def _is_kueues(metadata: Object) -> bool:
    """It may be told to manage all Jobs, also those without a queue."""
    return any(str(entry.get("manager")).startswith("kueue") for entry in metadata.get("managedFields") or [])


def _spec(entry: Object) -> Fields:
    return (entry.get("fieldsV1") or {}).get("f:spec") or {}


def _annotations(entry: Object) -> Fields:
    return ((entry.get("fieldsV1") or {}).get("f:metadata") or {}).get("f:annotations") or {}


def _covers(fields: Fields, wanted: Fields) -> bool:
    return all(name in fields and _covers(fields[name], tree) for name, tree in wanted.items())


def _size(fields: Fields) -> int:
    return len(fields) + sum(map(_size, fields.values()))
