"""Who has set what beneath `spec` of an object, as server-side apply keeps it in its metadata: so it is seen also after a time of
not watching, and of objects of which nothing but their metadata are read. Pure.
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Mapping
from typing import Any

from clusters.clouds.drivers.kubernetes.build import names

Object = Mapping[str, Any]
Entry = Mapping[str, Any]
# What of an object must be ours, beneath `spec`: what is taken away is nobody's.
OURS = {
    "Job": {"f:parallelism"},
    "Deployment": {"f:replicas"},
    "StatefulSet": {"f:replicas"},
    "Service": {"f:selector", "f:ports", "f:clusterIP", "f:publishNotReadyAddresses"},
    "NetworkPolicy": {"f:podSelector", "f:policyTypes", "f:egress"},
    "LimitRange": {"f:limits"},
    "ResourceQuota": {"f:hard"},
}
# The policy of a run lets others in, that of its namespace nobody.
OF_RUNS = {"NetworkPolicy": {"f:ingress"}}
# What cannot be changed any more, so that nothing which was added to it can be taken away.
FIXED = {"Job": {"f:template"}}
# What Kueue sets in Jobs, also in those that have none of its queues, where it was told to manage all.
_KUEUE, OF_QUEUES = "kueue", {"f:suspend", "f:template"}


def is_as_applied(kind: str, metadata: Object, *, of_run: bool = True, may: Collection[str] = ()) -> bool:
    """Whether nobody else has set anything beneath `spec` but what they `may`, or taken away what must be there."""
    wanted = OURS[kind] | (OF_RUNS.get(kind, set()) if of_run else set())
    ours: set[str] = set()
    for entry in metadata.get("managedFields") or []:
        if _is_ours(entry):
            ours |= set(_spec(entry))
        elif _is_others(entry, metadata):
            queues = kind == "Job" and str(entry.get("manager")).startswith(_KUEUE)
            if set(_spec(entry)) - set(may) - (OF_QUEUES if queues else set()):
                return False
    return wanted <= ours


def added(metadata: Object) -> dict[str, Any]:
    """What others have set beneath `spec`, as a tree of fields. Right after an apply it is what they have added: whatever we
    say ourselves is ours again by then."""
    found: dict[str, Any] = {}
    for entry in metadata.get("managedFields") or []:
        if not _is_ours(entry) and _is_others(entry, metadata):
            _merge(found, _spec(entry))
    return found


def taken_over(metadata: Object, fixed: Collection[str] = ()) -> list[dict[str, Any]]:
    """The `managedFields` with which all of `spec` but what is `fixed` is ours: what of it is not applied the next time goes."""
    entries: list[dict[str, Any]] = copy.deepcopy(list(metadata["managedFields"]))
    ours = next(entry for entry in entries if _is_ours(entry))
    kept = [ours]
    for entry in entries:
        if entry is ours:
            continue
        if _is_others(entry, metadata):
            fields = entry["fieldsV1"].pop("f:spec", {})
            _merge(ours["fieldsV1"].setdefault("f:spec", {}), {k: v for k, v in fields.items() if k not in fixed})
            if left := {k: v for k, v in fields.items() if k in fixed}:
                entry["fieldsV1"]["f:spec"] = left
        if entry.get("fieldsV1"):
            kept.append(entry)
    return kept


def in_words(fields: Mapping[str, Any]) -> str:
    """A tree of fields as people write them, each as far as it is one: "spec.template.spec.nodeSelector"."""
    found = []
    for name, tree in sorted(fields.items()):
        path = [name]
        while len(tree) == 1 and (inner := next(iter(tree))).startswith("f:"):
            path.append(inner)
            tree = tree[inner]
        found.append(".".join(["spec", *(each.removeprefix("f:") for each in path)]))
    return ", ".join(found)


def _is_ours(entry: Entry) -> bool:
    of_all = not entry.get("subresource")
    return of_all and entry.get("manager") == names.MANAGER and entry.get("operation") == "Apply"


def _is_others(entry: Entry, metadata: Object) -> bool:
    """Not its own controller's word on how it is; nor what admission made of it when we made it, which bears our name."""
    at_first = entry.get("manager") == names.MANAGER and metadata.get("generation", 1) == 1
    return entry.get("subresource") != "status" and not at_first


def _spec(entry: Entry) -> Mapping[str, Any]:
    return (entry.get("fieldsV1") or {}).get("f:spec") or {}


def _merge(into: dict[str, Any], more: Mapping[str, Any]) -> None:
    for name, tree in more.items():
        _merge(into.setdefault(name, {}), tree)
