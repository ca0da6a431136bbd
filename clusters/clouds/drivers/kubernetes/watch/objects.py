"""What is remembered of the two kinds of objects that runs are followed by: pods, which are their tasks, and the ConfigMaps that
own everything else of them. No network in here.
"""

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
    """`over` when nothing of it runs any more; `held` when it still has our finalizer; `leaving` when it was deleted. `serves`
    are its endpoints by name, None while one may not be opened, else where it is reached but by a gateway."""

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
        """Why what its task wrote is lost, or "". One that never started, because its input did not come, has written nothing."""
        is_lost = self.storage and self.storage.state == "failed" and self.seen.started_at
        return self.storage.message if self.storage and is_lost else ""


@dataclass(frozen=True)
class Owner:
    """`wanted`: nobody has asked for its end. `ending`: deleted, and the garbage collector knows that everything of the run
    goes with it. `ended`: all has gone."""

    run_id: int
    namespace: str
    name: str
    wanted: bool
    deleted: bool
    ending: bool
    not_stored: str
    held: bool

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
    )


def not_stored(metadata: Object) -> str:
    """Why the output of the run that it owns could not be stored; "" when it could."""
    return str((metadata.get("annotations") or {}).get(names.NOT_STORED, ""))
