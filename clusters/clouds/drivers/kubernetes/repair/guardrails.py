"""Watches the guardrails of namespaces: Pod Security labels, the NetworkPolicy that closes it, LimitRange, ResourceQuota. Finds
changes by others, which `upkeep` repairs. No network calls."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from clusters.clouds.drivers.base import PlaceChanged
from clusters.clouds.drivers.kubernetes.render import manifests
from clusters.clouds.drivers.kubernetes.repair import drift
from clusters.clouds.drivers.kubernetes.watch.objects import Object

# Seconds. A new namespace gets its objects right after it, and the watches are not synchronized.
PATIENCE = 5.0


class Bounds:
    """Each of our namespaces must have one object of each kind in `wanted`, with the fields given there."""

    def __init__(self, wanted: Mapping[str, drift.Fields]) -> None:
        self._wanted = wanted
        # True if a live namespace has the required Pod Security labels.
        self._secure: dict[str, bool] = {}
        # The existing objects, and whether each is as applied.
        self._parts: defaultdict[str, dict[str, bool]] = defaultdict(dict)
        self._doubtful: dict[str, float] = {}
        # Sentences on namespaces that need repair.
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
        """Returns namespaces found wrong for PATIENCE seconds. Call it every few seconds."""
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
