"""Watches the objects of runs other than pods: finds changes by hand, and what prevents pods from being created. No network
calls."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any

from clusters.clouds.drivers.base import RunBlocked, RunChanged, RunDecided, RunRef, Seen
from clusters.clouds.drivers.kubernetes.render import names, queueing
from clusters.clouds.drivers.kubernetes.repair import drift
from clusters.clouds.drivers.kubernetes.watch import workloads
from clusters.clouds.drivers.kubernetes.watch.absent import Absent, Key
from clusters.clouds.drivers.kubernetes.watch.admission import Admissions, run_of
from clusters.clouds.drivers.kubernetes.watch.job_history import Jobs
from clusters.clouds.drivers.kubernetes.watch.workloads import Why, Workload

Object = Mapping[str, Any]
# A run's id and a role, "" for objects of the whole run.
Belongs = tuple[int, str]


class Parts:
    """`wanted` returns whether a run is to continue; None if it has no owner (yet)."""

    def __init__(self, wanted: Callable[[int], bool | None]) -> None:
        self._wanted = wanted
        self.workloads: dict[Key, Workload] = {}
        self.jobs = Jobs()
        self.admissions = Admissions()
        self.absent = Absent(wanted)
        self._drift = drift.Drift()
        # Volumes of runs, by name.
        self.volumes: dict[str, RunRef] = {}
        # Workloads refused by a quota that has changed since.
        self.retry: dict[Key, None] = {}
        # The last reported change, by uid.
        self.told: dict[str, str] = {}
        # The original run and role of an object, by uid.
        self._belongs: dict[str, Belongs] = {}
        self._workloads_of: defaultdict[int, set[Key]] = defaultdict(set)
        self._refused: dict[Key, Why] = {}
        self._blocked: dict[int, Why] = {}
        self._quotas: dict[tuple[str, str], str] = {}

    def note_workload(self, kind: str, what: str, thing: Object) -> list[Seen]:
        """Handles a Job, Deployment or StatefulSet."""
        if kind != "DELETED":
            self.absent.note(what, thing["metadata"])
        workload = workloads.workload_of(what, thing)
        if self._is_relabelled(kind, thing["metadata"], (workload.run_id, workload.role) if workload else None):
            return self._note_relabelled(kind, what, thing["metadata"])
        if workload is None:
            return []
        key = (what, workload.namespace, workload.name)
        metadata, run_id = thing["metadata"], workload.run_id
        if what == "Job":
            self.jobs.note(run_id, thing, workloads.job_state(thing, deleted=kind == "DELETED"))
        if kind == "DELETED":
            self.workloads.pop(key, None)
            self._refused.pop(key, None)
            self._forget(metadata["uid"])
            self._workloads_of[run_id].discard(key)
            if not self._workloads_of[run_id]:
                del self._workloads_of[run_id]
            return [*self._missed(what, metadata, run_id), *self._note_blocked(run_id)]
        self.workloads[key] = workload
        self._workloads_of[run_id].add(key)
        if workload.complete:
            self._refused.pop(key, None)
        decided = self._note_decision(run_id) if workload.queue else []
        return [*self._note_blocked(run_id), *self._note_drift(what, metadata, run_id), *decided]

    def note_admission(self, kind: str, thing: Object) -> list[Seen]:
        """Handles the Workload of a run in a Kueue queue."""
        metadata, run_id = thing["metadata"], run_of(thing)
        if kind != "DELETED":
            self.absent.note(queueing.KIND, metadata)
        if self._is_relabelled(kind, metadata, (run_id, "") if run_id is not None else None):
            return self._note_relabelled(kind, queueing.KIND, metadata)
        if run_id is None:
            return []
        self.admissions.note(kind, thing, run_id)
        if kind == "DELETED":
            self._forget(metadata["uid"])
            return [*self._missed(queueing.KIND, metadata, run_id), *self._note_blocked(run_id)]
        return [
            *self._note_blocked(run_id),
            *self._note_drift(queueing.KIND, metadata, run_id),
            *self._note_decision(run_id),
        ]

    def makers_of(self, run_id: int) -> list[Workload]:
        """Returns what makes the pods of a run."""
        return [self.workloads[key] for key in sorted(self._workloads_of.get(run_id, ()))]

    def note_places(self, before: Mapping[int, int]) -> list[Seen]:
        """Handles how many are before each waiting run in its queue."""
        self.admissions.before = dict(before)
        return [item for run_id in list(self.admissions.of) for item in self._note_blocked(run_id)]

    def _note_decision(self, run_id: int) -> list[Seen]:
        """Reports that a run is not as Kueue decided."""
        if self._wanted(run_id) is False or not self.admissions.is_out_of_step(run_id, self.makers_of(run_id)):
            return []
        return [RunDecided(run_id)]

    def note_part(self, kind: str, what: str, thing: Object) -> list[Seen]:
        """Handles a Service, Ingress or NetworkPolicy, of which only metadata are read."""
        metadata = thing["metadata"]
        if kind != "DELETED":
            self.absent.note(what, metadata)
        ref = ref_of(metadata)
        if self._is_relabelled(kind, metadata, (ref.id, "") if ref else None):
            return self._note_relabelled(kind, what, metadata)
        if ref is None:
            return []
        if kind == "DELETED":
            self._forget(metadata["uid"])
            return self._missed(what, metadata, ref.id)
        return self._note_drift(what, metadata, ref.id)

    def note_volume(self, kind: str, volume: Object) -> None:
        metadata = volume["metadata"]
        ref = ref_of(metadata, ((volume.get("spec") or {}).get("claimRef") or {}).get("namespace", ""))
        if kind == "DELETED" or ref is None:
            self.volumes.pop(metadata["name"], None)
        else:
            self.volumes[metadata["name"]] = ref

    def is_known(self, uid: str) -> bool:
        """Returns whether an object was once seen as part of a run."""
        return uid in self._belongs

    def _is_relabelled(self, kind: str, metadata: Object, to: Belongs | None) -> bool:
        """Returns whether an object's labels changed its run or role, after which the watch would no longer see it."""
        uid = metadata["uid"]
        before = self._belongs.get(uid)
        if before is None and to is not None and kind != "DELETED":
            self._belongs[uid] = to
        elif before == to and kind == "DELETED":
            self._belongs.pop(uid, None)
        return before is not None and before != to

    def _note_relabelled(self, kind: str, what: str, metadata: Object) -> list[Seen]:
        uid, (run_id, _) = metadata["uid"], self._belongs[metadata["uid"]]
        if kind == "DELETED":
            del self._belongs[uid]
            self._forget(uid)
            return self._missed(what, metadata, run_id)
        if self._wanted(run_id) is False:
            return []
        change = f"labels {sorted((metadata.get('labels') or {}).items())}"
        return self.changed(uid, change, run_id, f"The labels of {what} {metadata['name']} were changed by hand.")

    def _missed(self, what: str, metadata: Object, run_id: int) -> list[Seen]:
        """Reports an object that was deleted or lost its labels while its run goes on."""
        if not self._wanted(run_id):
            return []
        return [RunChanged(run_id, f"{what} {metadata['name']} was deleted by hand.")]

    def _note_drift(self, what: str, metadata: Object, run_id: int) -> list[Seen]:
        uid, labels = metadata["uid"], metadata.get("labels") or {}
        queued = what == "Job" and workloads.QUEUE in labels
        if not any(each["kind"] == "ConfigMap" for each in metadata.get("ownerReferences") or []):
            how = "taken from its run"
        elif not self._drift.is_as_applied(what, metadata, queued=queued, ordered=names.QUEUE in labels):
            how = "changed by hand"
        else:
            self.told.pop(uid, None)
            return []
        if "deletionTimestamp" in metadata or self._wanted(run_id) is False:
            # Our own change: scaling down to end tasks, and the Service without its selector.
            return []
        change = f"{drift.version_of(metadata)} of {len(metadata.get('ownerReferences') or ())}"
        return self.changed(uid, change, run_id, f"{what} {metadata['name']} was {how}.")

    def _forget(self, uid: str) -> None:
        self.told.pop(uid, None)
        self._drift.forget(uid)

    def changed(self, uid: str, change: str, run_id: int, why: str) -> list[Seen]:
        """Reports each change once; until it is applied again the object may have other news."""
        if self.told.get(uid) == change:
            return []
        self.told[uid] = change
        return [RunChanged(run_id, why)]

    # -- what keeps pods from being made ---------------------------------------------------------------------------

    def note_refusal(self, key: Key, text: str) -> list[Seen]:
        """Handles a controller's message about pods that the API server refused."""
        workload = self.workloads.get(key)
        if workload is None or workload.complete:
            return []
        self._refused[key] = workloads.refusal(text, workload.namespace)
        return self._note_blocked(workload.run_id)

    def note_quota(self, kind: str, quota: Object) -> None:
        """Schedules a retry when a quota changes, because controllers with refused pods would wait for minutes."""
        metadata = quota["metadata"]
        key = (metadata["namespace"], metadata["name"])
        before = self._quotas.pop(key, None)
        if kind != "DELETED":
            self._quotas[key] = metadata["resourceVersion"]
        if before is not None and before != metadata["resourceVersion"]:
            # Oldest runs first.
            blocked = sorted(run_id for run_id, why in self._blocked.items() if why[0] == workloads.QUOTA)
            keys = (each for run_id in blocked for each in sorted(self._workloads_of.get(run_id, ())))
            self.retry |= dict.fromkeys(each for each in keys if each[1] == key[0])

    def _note_blocked(self, run_id: int) -> list[Seen]:
        why = self.admissions.why(run_id)
        for key in sorted(self._workloads_of.get(run_id, ())):
            workload = self.workloads[key]
            # About to be resumed.
            is_let_go = workload.stop and workload.queue and self.admissions.is_let_go(run_id)
            if not (workload.complete or workload.leaving or is_let_go):
                why = why or workload.why or self._refused.get(key)
        if why == self._blocked.get(run_id):
            return []
        if why is None:
            del self._blocked[run_id]
            return [RunBlocked(run_id, "", "")]
        self._blocked[run_id] = why
        return [RunBlocked(run_id, *why)]


def ref_of(metadata: Object, namespace: str = "") -> RunRef | None:
    """Returns the run of an object by its labels; None if they are not ours or were changed by hand."""
    labels = metadata.get("labels") or {}
    run_id, number = names.run_id_of(labels), labels.get(names.RUN, "")
    if run_id is None or not (number.isascii() and number.isdigit()):
        return None
    return RunRef(
        id=run_id,
        namespace=metadata.get("namespace") or namespace,
        appcode=labels.get(names.APPCODE, ""),
        cluster=labels.get(names.CLUSTER, ""),
        number=int(number),
    )
