"""Finds labels and finalizers that others removed from live objects. Without them the portal would miss the end of these
objects, so their values are remembered, and `upkeep` restores them. No network calls."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from clusters.clouds.drivers.kubernetes.render import names
from clusters.clouds.drivers.kubernetes.watch.objects import Object, Owner, Pod


@dataclass(frozen=True)
class Damage:
    """What others removed from an object; patching `metadata` restores it."""

    kind: str
    namespace: str
    name: str
    metadata: Mapping[str, Any]


class Damages:
    """`pods` and `owners`: the known ones."""

    def __init__(self, pods: Mapping[str, Pod], owners: Mapping[int, Owner]) -> None:
        self._pods, self._owners = pods, owners
        # By uid, until the object is seen intact.
        self.found: dict[str, Damage] = {}
        # Our labels on the objects of a run, by role ("" for the owner).
        self._labels: defaultdict[int, dict[str, dict[str, str]]] = defaultdict(dict)

    def note_owner(self, run_id: int, metadata: Object) -> None:
        """Remembers the owner's labels."""
        self._labels[run_id][""] = _ours(metadata["labels"])

    def note_pod(self, run_id: int, role: str, metadata: Object) -> None:
        """Remembers the labels of a role's first pod; the others have the same."""
        if role not in (labels := self._labels[run_id]):
            labels[role] = _ours(metadata["labels"])

    def note(self, kind: str, thing: Object, finalizer: str) -> None:
        metadata = thing["metadata"]
        uid, labels = metadata["uid"], metadata.get("labels") or {}
        run_id, role = names.run_id_of(labels), labels.get(names.ROLE, "")
        if kind == "Pod" and uid in self._pods:
            run_id, role = self._pods[uid].run_id, self._pods[uid].seen.role
        elif kind == "ConfigMap" and run_id is None:
            place = metadata["namespace"], metadata["name"]
            run_id = next((each.run_id for each in self._owners.values() if (each.namespace, each.name) == place), None)
        known = self._labels.get(run_id or 0, {}).get(role) or _ours(labels)
        if run_id is not None:
            wanted = {"uid": uid, "labels": known, "finalizers": [finalizer]}
            self.found[uid] = Damage(kind, metadata["namespace"], metadata["name"], wanted)

    def mended(self, uid: str) -> None:
        if self.found:
            self.found.pop(uid, None)

    def forget(self, run_id: int) -> None:
        self._labels.pop(run_id, None)


def _ours(labels: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in labels.items() if name.startswith(f"{names.PREFIX}/")}
