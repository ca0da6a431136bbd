"""Who ended a pod that was deleted: its Job (suspended to make room, or deleted itself), or somebody who deleted just it. Pure.

Pods do not say, and Jobs are told by another watch, which may be ahead or behind. So what counts is what the Job was at the
pod's deletion, by the resourceVersions of both, which one API server takes from one counter (KEP-5504 lets them be compared);
whoever asks before the Job's watch has come that far is told to wait. In which order the watches told it makes no difference.
"""

from __future__ import annotations

import datetime as dt
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

Object = Mapping[str, Any]
# "stopped" is suspended by us, because its run is to end.
JobState = Literal["live", "suspended", "stopped", "gone"]
# How many changes of one Job are kept: what was asked about has been answered long before there are more.
MOST = 50


@dataclass(frozen=True)
class Deletion:
    """When a pod was asked to go. `exact` when its news before were of a pod that lived; otherwise `version` is a later one."""

    version: int
    asked_at: dt.datetime
    exact: bool


@dataclass(frozen=True)
class _Change:
    version: int
    state: JobState
    resumed_at: dt.datetime | None


class Jobs:
    """What the Jobs of runs were, and since when; `heard` is how far their watch has come."""

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
        """What the Job was then; None when that is not known yet. One that nobody has heard of is gone."""
        changes = self._changes.get(run_id, {}).get(uid)
        if changes and changes[-1].state == "gone" and changes[-1].version <= deletion.version:
            # It never comes back.
            return "gone"
        if self.heard < deletion.version:
            return None
        if not changes:
            return "gone"
        if not deletion.exact:
            # Only what the Job itself remembers reaches back before what was listed: to the second.
            for change in changes:
                if change.resumed_at and deletion.asked_at <= change.resumed_at:
                    return "suspended"
        known = [change for change in changes if change.version <= deletion.version]
        return (known[-1] if known else changes[0]).state


def version_of(thing: Object) -> int:
    """0 of an API server whose versions are no numbers: then everything counts as heard."""
    text = str(thing["metadata"].get("resourceVersion") or "")
    return int(text) if text.isascii() and text.isdigit() else 0


def deletion_of(pod: Object, *, exact: bool) -> Deletion | None:
    """None of a pod that nobody has deleted."""
    metadata = pod["metadata"]
    if "deletionTimestamp" not in metadata:
        return None
    grace = dt.timedelta(seconds=int(metadata.get("deletionGracePeriodSeconds") or 0))
    return Deletion(version_of(pod), dt.datetime.fromisoformat(metadata["deletionTimestamp"]) - grace, exact)


def job_of(pod: Object) -> str:
    """The uid of the Job that made it, "" when none did."""
    owners = pod["metadata"].get("ownerReferences") or []
    return next((str(each["uid"]) for each in owners if each["kind"] == "Job"), "")


def _resumed_at(job: Object) -> dt.datetime | None:
    for each in (job.get("status") or {}).get("conditions") or []:
        if each["type"] == "Suspended" and each["status"] == "False" and each.get("lastTransitionTime"):
            return dt.datetime.fromisoformat(each["lastTransitionTime"])
    return None
