"""The mirror's records of a run's pods (its tasks) and of the ConfigMap that owns the rest. No network calls."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from clusters.clouds.drivers.base import StorageSeen, TaskSeen
from clusters.clouds.drivers.kubernetes.render import names

Object = Mapping[str, Any]
FOREGROUND = "foregroundDeletion"


@dataclass(frozen=True)
class Pod:
    """`over`: nothing of it runs any more. `held`: it has our finalizer. `leaving`: it was deleted. `serves`: its endpoints by
    name, None while one is not ready, else its address, "" if behind a gateway."""

    namespace: str
    name: str
    seen: TaskSeen
    storage: StorageSeen | None
    over: bool
    held: bool
    leaving: bool
    serves: Mapping[str, str | None]

    @property
    def run_id(self) -> int:
        return self.seen.run_id

    @property
    def not_stored(self) -> str:
        """Why its task's output is lost, or "". A task that never started, because its input failed, has no output."""
        is_lost = self.storage and self.storage.state == "failed" and self.seen.started_at
        return self.storage.message if self.storage and is_lost else ""


@dataclass(frozen=True)
class Owner:
    """`wanted`: not asked to end. `ending`: the garbage collector is deleting everything. `ended`: everything is deleted.
    `gang`: the API of the PodGroup by which its pods get nodes together, "" when that group is open, or if there is none."""

    run_id: int
    namespace: str
    name: str
    wanted: bool
    deleted: bool
    ending: bool
    not_stored: str
    held: bool
    life: int = 0
    uid: str = ""
    gang: str = ""

    @property
    def ended(self) -> bool:
        return self.deleted and not self.ending


def owner_of(owner: Object, run_id: int) -> Owner:
    metadata = owner["metadata"]
    finalizers, deleted = metadata.get("finalizers") or [], "deletionTimestamp" in metadata
    return Owner(
        run_id=run_id,
        namespace=metadata["namespace"],
        name=metadata["name"],
        wanted=not (deleted or names.ENDING in (metadata.get("annotations") or {})),
        deleted=deleted,
        ending=FOREGROUND in finalizers,
        not_stored=not_stored(metadata),
        held=names.TOLD in finalizers,
        life=life_of(metadata),
        uid=metadata["uid"],
        gang=str((metadata.get("annotations") or {}).get(names.GANG, "")),
    )


def life_of(metadata: Object) -> int:
    """Returns how often the run was taken off the cluster before it got this owner."""
    said = str((metadata.get("annotations") or {}).get(names.LIFE, ""))
    return int(said) if said.isdecimal() and said.isascii() and len(said) < 10 else 0


def not_stored(metadata: Object) -> str:
    """Returns why the run's output could not be stored, or ""."""
    return str((metadata.get("annotations") or {}).get(names.NOT_STORED, ""))
