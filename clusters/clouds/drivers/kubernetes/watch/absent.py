"""Finds objects of runs that were deleted while nobody watched: the owner of a run names them, and a listing lacks them. No
network calls.

A watch reports each later deletion, so this compares one listing only, from what it reads anyway.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from clusters.clouds.drivers.base import RunChanged, Seen
from clusters.clouds.drivers.kubernetes.render import names
from clusters.clouds.drivers.kubernetes.repair import drift

Object = Mapping[str, Any]
# Kind, namespace and name.
Key = tuple[str, str, str]
# Seconds after a listing. A launch in progress may have created the owner and not yet all objects; each kind is listed at
# another moment, and the watches deliver what came later.
PATIENCE = 20.0


class Absent:
    """`wanted` returns whether a run is to continue."""

    def __init__(self, wanted: Callable[[int], bool | None]) -> None:
        self._wanted = wanted
        # What the listing has shown so far; None once it is complete.
        self._seen: set[Key] | None = set()
        # Objects that owners name and that were not seen, each with its run.
        self._lacking: dict[Key, int] = {}
        self._due = 0.0

    def note(self, kind: str, metadata: Object) -> None:
        """Notes an existing object."""
        key = (kind, metadata["namespace"], metadata["name"])
        if self._seen is not None:
            self._seen.add(key)
        if self._lacking:
            self._lacking.pop(key, None)

    def note_owner(self, run_id: int, metadata: Object) -> None:
        """Reads the names of a run's objects from its owner. Only those in the listing count."""
        if self._seen is None:
            return
        for each in (metadata.get("annotations") or {}).get(names.OBJECTS, "").split():
            kind, _, name = each.partition("/")
            key = (kind, metadata["namespace"], name)
            if kind in drift.KINDS and key not in self._seen:
                self._lacking[key] = run_id

    def listed(self, now: float) -> None:
        """The listing is complete. `now`: seconds of a monotonic clock."""
        self._seen, self._due = None, now + PATIENCE

    def news(self, now: float) -> list[Seen]:
        """Returns what is still missing PATIENCE seconds after the listing, once. Call it every few seconds."""
        if not self._lacking or self._seen is not None or now < self._due:
            return []
        lacking, self._lacking = self._lacking, {}
        return [
            RunChanged(run_id, f"{kind} {name} is missing.")
            for (kind, _, name), run_id in lacking.items()
            if self._wanted(run_id)
        ]
