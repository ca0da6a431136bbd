"""What the runs of a Kubernetes cluster are made of besides pods, as far as it is watched: what of it was changed by hand, and
what keeps their pods from being made. No network in here.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any

from clusters.clouds.drivers.base import RunBlocked, RunChanged, RunRef, Seen
from clusters.clouds.drivers.kubernetes.render import names
from clusters.clouds.drivers.kubernetes.repair import drift
from clusters.clouds.drivers.kubernetes.watch import workloads
from clusters.clouds.drivers.kubernetes.watch.job_history import Jobs
from clusters.clouds.drivers.kubernetes.watch.workloads import Why, Workload

Object = Mapping[str, Any]
# Kind, namespace and name.
Key = tuple[str, str, str]
# A run's id and a role, "" for what belongs to all of them.
Belongs = tuple[int, str]


class Parts:
    """`wanted` says of a run whether it is to go on; None of one that has no owner (yet)."""

    def __init__(self, wanted: Callable[[int], bool | None]) -> None:
        self._wanted = wanted
        self.workloads: dict[Key, Workload] = {}
        self.jobs = Jobs()
        self._drift = drift.Drift()
        # Volumes that belong to runs, by their names.
        self.volumes: dict[str, RunRef] = {}
        # Workloads whose pods were refused by a quota that has changed since.
        self.retry: dict[Key, None] = {}
        # The change that was told last, by uid.
        self.told: dict[str, str] = {}
        # The run and the role that the labels of a uid said at first.
        self._belongs: dict[str, Belongs] = {}
        self._workloads_of: defaultdict[int, set[Key]] = defaultdict(set)
        self._refused: dict[Key, Why] = {}
        self._blocked: dict[int, Why] = {}
        self._quotas: dict[tuple[str, str], str] = {}

    def note_workload(self, kind: str, what: str, thing: Object) -> list[Seen]:
        """A Job, Deployment or StatefulSet."""
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
        return [*self._note_blocked(run_id), *self._note_drift(what, metadata, run_id)]

    def note_part(self, kind: str, what: str, thing: Object) -> list[Seen]:
        """A Service, Ingress or NetworkPolicy, of which only the metadata are known."""
        metadata = thing["metadata"]
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
        """Whether it was seen to belong to a run."""
        return uid in self._belongs

    def _is_relabelled(self, kind: str, metadata: Object, to: Belongs | None) -> bool:
        """Whether its labels say something else than they did. Without them nothing else that is done to it would be seen."""
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
        """It was deleted, or lost its labels: news while its run goes on."""
        if not self._wanted(run_id):
            return []
        return [RunChanged(run_id, f"{what} {metadata['name']} was deleted by hand.")]

    def _note_drift(self, what: str, metadata: Object, run_id: int) -> list[Seen]:
        uid, queued = metadata["uid"], what == "Job" and workloads.QUEUE in (metadata.get("labels") or {})
        if not any(each["kind"] == "ConfigMap" for each in metadata.get("ownerReferences") or []):
            how = "taken from its run"
        elif not self._drift.is_as_applied(what, metadata, queued=queued):
            how = "changed by hand"
        else:
            self.told.pop(uid, None)
            return []
        if "deletionTimestamp" in metadata or self._wanted(run_id) is False:
            # Ours: tasks that end are told to, and the Service tells no addresses of them any more.
            return []
        change = f"{drift.version_of(metadata)} of {len(metadata.get('ownerReferences') or ())}"
        return self.changed(uid, change, run_id, f"{what} {metadata['name']} was {how}.")

    def _forget(self, uid: str) -> None:
        self.told.pop(uid, None)
        self._drift.forget(uid)

    def changed(self, uid: str, change: str, run_id: int, why: str) -> list[Seen]:
        """Told once for each change: until it is applied again there may be other news of it."""
        if self.told.get(uid) == change:
            return []
        self.told[uid] = change
        return [RunChanged(run_id, why)]

    # -- what keeps pods from being made ---------------------------------------------------------------------------

    def note_refusal(self, key: Key, text: str) -> list[Seen]:
        """What its controller says of pods that the API server did not make."""
        workload = self.workloads.get(key)
        if workload is None or workload.complete:
            return []
        self._refused[key] = workloads.refusal(text, workload.namespace)
        return self._note_blocked(workload.run_id)

    def note_quota(self, kind: str, quota: Object) -> None:
        """When there is room again, controllers whose pods were refused would look only after minutes."""
        metadata = quota["metadata"]
        key = (metadata["namespace"], metadata["name"])
        before = self._quotas.pop(key, None)
        if kind != "DELETED":
            self._quotas[key] = metadata["resourceVersion"]
        if before is not None and before != metadata["resourceVersion"]:
            # In the order in which they were made.
            blocked = sorted(run_id for run_id, why in self._blocked.items() if why[0] == workloads.QUOTA)
            keys = (each for run_id in blocked for each in sorted(self._workloads_of.get(run_id, ())))
            self.retry |= dict.fromkeys(each for each in keys if each[1] == key[0])

    def _note_blocked(self, run_id: int) -> list[Seen]:
        why: Why | None = None
        for key in sorted(self._workloads_of.get(run_id, ())):
            workload = self.workloads[key]
            if not (workload.complete or workload.leaving):
                why = why or workload.why or self._refused.get(key)
        if why == self._blocked.get(run_id):
            return []
        if why is None:
            del self._blocked[run_id]
            return [RunBlocked(run_id, "", "")]
        self._blocked[run_id] = why
        return [RunBlocked(run_id, *why)]


def ref_of(metadata: Object, namespace: str = "") -> RunRef | None:
    """The run that an object belongs to, from its labels; None when they are not ours or were changed by hand."""
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
