"""What bounds a namespace, as it is watched: Pod Security, the policy that closes it, its LimitRange, its ResourceQuota. What of
it somebody changed or took away is found here, and put back by `upkeep`. No network in here.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from clusters.clouds.drivers.base import PlaceChanged
from clusters.clouds.drivers.kubernetes.render import manifests
from clusters.clouds.drivers.kubernetes.repair import drift
from clusters.clouds.drivers.kubernetes.watch.objects import Object

# Seconds. Somebody who makes a namespace makes the rest right after it, and the watches are not in step.
PATIENCE = 5.0


class Bounds:
    """Of every namespace that is ours there must be one of each of the kinds in `wanted`, with what is applied of it."""

    def __init__(self, wanted: Mapping[str, drift.Fields]) -> None:
        self._wanted = wanted
        # Whether Pod Security is as wanted, of all that are not being deleted.
        self._secure: dict[str, bool] = {}
        # What is there, and whether it is as it was applied.
        self._parts: defaultdict[str, dict[str, bool]] = defaultdict(dict)
        self._doubtful: dict[str, float] = {}
        # Namespaces that are not as wanted, and why, until they are.
        self.found: dict[str, str] = {}

    def note_namespace(self, kind: str, namespace: Object, now: float) -> None:
        metadata = namespace["metadata"]
        name, labels = metadata["name"], metadata.get("labels") or {}
        if kind == "DELETED" or "deletionTimestamp" in metadata:
            for kept in (self._secure, self._doubtful, self.found):
                kept.pop(name, None)
        else:
            self._secure[name] = labels.items() >= manifests.SECURITY.items()
            self._judge(name, now)

    def note_part(self, kind: str, what: str, thing: Object, now: float) -> None:
        metadata = thing["metadata"]
        if metadata["name"] != manifests.LIMITS or what not in self._wanted:
            return
        parts = self._parts[metadata["namespace"]]
        if kind == "DELETED":
            parts.pop(what, None)
        else:
            parts[what] = drift.has(metadata, self._wanted[what])
        self._judge(metadata["namespace"], now)

    def news(self, now: float) -> list[PlaceChanged]:
        """Of what is not as wanted for a while. To be asked every few seconds."""
        told = []
        for namespace in [name for name, since in self._doubtful.items() if now - since >= PATIENCE]:
            del self._doubtful[namespace]
            wrong = ", ".join(self._wrong(namespace))
            sentence = f"What bounds namespace {namespace} is not as it should be: {wrong}. It is put right."
            if self.found.get(namespace) != sentence:
                self.found[namespace] = sentence
                told.append(PlaceChanged(namespace, sentence))
        return told

    def _judge(self, namespace: str, now: float) -> None:
        if namespace not in self._secure:
            return
        if self._wrong(namespace):
            self._doubtful.setdefault(namespace, now)
        else:
            self._doubtful.pop(namespace, None)
            self.found.pop(namespace, None)

    def _wrong(self, namespace: str) -> list[str]:
        parts = self._parts.get(namespace, {})
        labels = [] if self._secure[namespace] else ["its labels of Pod Security were changed"]
        wrong = (kind for kind in self._wanted if not parts.get(kind))
        return labels + [f"its {kind} {'was changed' if kind in parts else 'is missing'}" for kind in wrong]
