"""Finds out who ended a deleted pod: its Job (suspended to make room, or deleted itself), or somebody who deleted just the pod.
Pure.

Pods do not tell, and Jobs arrive by another watch, which may be ahead or behind. So the Job's state at the pod's deletion
decides, by the resourceVersions of both, which one API server takes from one counter (KEP-5504 allows comparing them). Until the
Job's watch has come that far there is no answer. The order in which the watches deliver does not matter.
"""

from __future__ import annotations

import datetime as dt
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

Object = Mapping[str, Any]
# "stopped": suspended by us to end its run.
JobState = Literal["live", "suspended", "stopped", "gone"]
# Maximum number of changes kept per Job; questions about older ones have been answered long before.
MOST = 50


@dataclass(frozen=True)
class Deletion:
    """The deletion of a pod. `exact`: the previous event showed it alive; otherwise `version` may be later than the deletion."""

    version: int
    asked_at: dt.datetime
    exact: bool


@dataclass(frozen=True)
class _Change:
    version: int
    state: JobState
    resumed_at: dt.datetime | None


class Jobs:
    """The history of the Jobs of runs. `heard`: the version that their watch has reached."""

    def __init__(self) -> None:
        self.heard = 0
        self._changes: defaultdict[int, dict[str, list[_Change]]] = defaultdict(dict)

    def note(self, run_id: int, job: Object, state: JobState) -> None:
        metadata = job["metadata"]
        version = version_of(job)
        self.hear(version)
        if state == "gone" and metadata["uid"] not in self._changes.get(run_id, {}):
            return
        changes = self._changes[run_id].setdefault(metadata["uid"], [])
        if not changes or changes[-1].state != state:
            changes.append(_Change(version, state, _resumed_at(job)))
            del changes[:-MOST]

    def hear(self, version: int) -> None:
        self.heard = max(self.heard, version)

    def forget(self, run_id: int) -> None:
        self._changes.pop(run_id, None)

    def at(self, run_id: int, uid: str, deletion: Deletion) -> JobState | None:
        """Returns the Job's state at the deletion; None if not known yet. An unknown Job counts as gone."""
        changes = self._changes.get(run_id, {}).get(uid)
        if changes and changes[-1].state == "gone" and changes[-1].version <= deletion.version:
            # Final: it never comes back.
            return "gone"
        if self.heard < deletion.version:
            return None
        if not changes:
            return "gone"
        if not deletion.exact:
            # Before the listing there is only the Job's own record, with a resolution of seconds.
            for change in changes:
                if change.resumed_at and deletion.asked_at <= change.resumed_at:
                    return "suspended"
        known = [change for change in changes if change.version <= deletion.version]
        return (known[-1] if known else changes[0]).state


def version_of(thing: Object) -> int:
    """Returns the resource version; 0 if it is not a number, so that everything counts as heard."""
    text = str(thing["metadata"].get("resourceVersion") or "")
    return int(text) if text.isascii() and text.isdigit() else 0


def deletion_of(pod: Object, *, exact: bool) -> Deletion | None:
    """Returns the deletion of a pod, or None."""
    metadata = pod["metadata"]
    if "deletionTimestamp" not in metadata:
        return None
    grace = dt.timedelta(seconds=int(metadata.get("deletionGracePeriodSeconds") or 0))
    return Deletion(version_of(pod), dt.datetime.fromisoformat(metadata["deletionTimestamp"]) - grace, exact)


def job_of(pod: Object) -> str:
    """Returns the uid of the Job that made a pod, or ""."""
    owners = pod["metadata"].get("ownerReferences") or []
    return next((str(each["uid"]) for each in owners if each["kind"] == "Job"), "")


def _resumed_at(job: Object) -> dt.datetime | None:
    for each in (job.get("status") or {}).get("conditions") or []:
        if each["type"] == "Suspended" and each["status"] == "False" and each.get("lastTransitionTime"):
            return dt.datetime.fromisoformat(each["lastTransitionTime"])
    return None
