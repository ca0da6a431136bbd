"""Decides why deleted pods ended, by their Job's history (`job_history`) and their owner, and when to report it. Until that is
known, the pod is reported as Stopping. No network calls."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from dataclasses import replace

from clusters.clouds.drivers.base import TaskSeen
from clusters.clouds.drivers.kubernetes.watch import job_history, reasons
from clusters.clouds.drivers.kubernetes.watch.admission import Admissions
from clusters.clouds.drivers.kubernetes.watch.job_history import Deletion, Jobs
from clusters.clouds.drivers.kubernetes.watch.objects import Object, Owner, Pod

# How long the end of a deleted pod waits for news of its Job. A watch is never silent for longer.
PATIENCE = dt.timedelta(seconds=12)


class Ends:
    """`owners`: the known ones. `jobs`: their history. `admissions`: of runs in Kueue queues."""

    def __init__(self, owners: Mapping[int, Owner], jobs: Jobs, admissions: Admissions) -> None:
        self._owners, self._jobs, self._admissions = owners, jobs, admissions
        # By uid: deletions of pods; and ended pods whose cause is unknown, with their run and the deadline of the decision.
        self._deletions: dict[str, Deletion] = {}
        self._undecided: dict[str, tuple[Object, int, dt.datetime]] = {}

    def note_deletion(self, pod: Object, before: Pod | None) -> None:
        uid = pod["metadata"]["uid"]
        exact = before is not None and not before.leaving
        if uid not in self._deletions and (deletion := job_history.deletion_of(pod, exact=exact)):
            self._deletions[uid] = deletion

    def explained(self, pod: Object, seen: TaskSeen, before: Pod | None) -> TaskSeen | None:
        """Returns a stopped pod with the cause of its end; once reported, the cause stays. None if it cannot be known yet.

        If the whole Job was deleted or suspended, its pods are recreated and the program is not to blame. A single deleted pod
        counts as Kubernetes counts it.
        """
        if before and before.over:
            told = before.seen
            return replace(seen, reason=told.reason, message=told.message, disrupted=told.disrupted)
        owner = self._owners.get(seen.run_id)
        if owner is None:
            return None
        if not owner.wanted:
            return seen
        if job := job_history.job_of(pod):
            state = self._jobs.at(seen.run_id, job, self._deletions[seen.uid])
            if state is None or state == "stopped":
                return seen if state else None
            if state != "live":
                why = reasons.JOB_DELETED if state == "gone" else reasons.JOB_SUSPENDED
                return replace(seen, reason="Disrupted", message=why, disrupted=True)
        elif seen.run_id in self._admissions.of and not self._admissions.is_let_go(seen.run_id):
            return replace(seen, reason="Disrupted", message=reasons.TAKEN_BACK, disrupted=True)
        return replace(seen, message=reasons.POD_DELETED)

    def decide(self, pod: Object, seen: TaskSeen, now: dt.datetime, *, at_once: bool) -> TaskSeen:
        """Returns what to report while the cause is unknown: Stopping, for up to PATIENCE."""
        known = self._undecided.pop(seen.uid, None)
        until = known[2] if known else now + PATIENCE
        if at_once or now >= until:
            owner = self._owners.get(seen.run_id)
            return replace(seen, message=reasons.POD_DELETED) if owner and owner.wanted else seen
        self._undecided[seen.uid] = pod, seen.run_id, until
        return replace(
            seen, phase="Running" if seen.began_at else "Pending", reason="Stopping", message="", finished_at=None,
            exit_code=None, disrupted=False, estimated=False, log_tail="",
        )  # fmt: skip

    def is_undecided(self, uid: str) -> bool:
        return uid in self._undecided

    def ripe(self, now: dt.datetime) -> list[Object]:
        """Returns the pods whose end can be reported by now."""
        heard = self._jobs.heard
        return [
            pod
            for uid, (pod, run_id, until) in self._undecided.items()
            if now >= until or (run_id in self._owners and self._deletions[uid].version <= heard)
        ]

    def forget(self, uid: str) -> None:
        self._deletions.pop(uid, None)
        self._undecided.pop(uid, None)
