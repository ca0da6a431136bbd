"""What the watching process remembers of runs, pods and nodes, and what of an event is news. No network in here.

It is rebuilt by every listing, so it may be lost at any time. It serves four things: telling each state once, knowing the
pod behind a uid when its end has been written down, capacity without asking, and what `upkeep` has to put right.
"""

from __future__ import annotations

import datetime as dt
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from clusters.clouds.base import (
    Capacity,
    RunFound,
    RunGone,
    RunRef,
    Seen,
    StorageSeen,
    StorageState,
    TaskSeen,
)
from clusters.clouds.kubernetes import capacity, names, reasons, states, verdicts
from clusters.clouds.kubernetes.parts import Parts, ref_of
from clusters.clouds.kubernetes.settings import GPU_MODEL
from clusters.clouds.kubernetes.unreadable import finished_at, has_ended, has_gone
from clusters.clouds.kubernetes.verdicts import Deletion
from clusters.clouds.kubernetes.workloads import Why

Object = Mapping[str, Any]
FOREGROUND = "foregroundDeletion"
# An older Event says nothing of today: controllers repeat them at least this often.
EVENT_AGE = dt.timedelta(minutes=10)
# For how long a deleted pod's end waits for news of its Job, which say whose fault it was. A watch is never silent for longer.
PATIENCE = dt.timedelta(seconds=12)
_STEPS: tuple[StorageState, ...] = ("failed", "fetching", "storing", "ready", "stored")


@dataclass(frozen=True)
class Pod:
    """`over` when nothing of it runs any more; `held` when it still has our finalizer; `leaving` when it was deleted."""

    namespace: str
    name: str
    seen: TaskSeen
    storage: StorageSeen | None
    over: bool
    held: bool
    leaving: bool

    @property
    def run_id(self) -> int:
        return self.seen.run_id


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


@dataclass(frozen=True)
class Damage:
    """What somebody took from an object that lives on: put back by a patch of these `metadata`."""

    kind: str
    namespace: str
    name: str
    metadata: Mapping[str, Any]


class Mirror:
    def __init__(self) -> None:
        self.pods: dict[str, Pod] = {}
        self.runs: defaultdict[int, set[str]] = defaultdict(set)
        self.owners: dict[int, Owner] = {}
        self.parts = Parts(lambda run_id: self.owners[run_id].wanted if run_id in self.owners else None)
        self.shares = capacity.Shares()
        # Runs whose owner or namespace was deleted by hand, so that nobody ends their tasks.
        self.left_behind: set[int] = set()
        # Runs whose tasks are being ended before everything else of them.
        self.stopping: set[int] = set()
        # Pods of services on which their number is to be written, before the pods that were counted can go.
        self.unnumbered: dict[str, TaskSeen] = {}
        self.damaged: dict[str, Damage] = {}
        self._refs: dict[int, RunRef] = {}
        # What stands on the objects of a run, by role ("" is the owner).
        self._labels: defaultdict[int, dict[str, dict[str, str]]] = defaultdict(dict)
        self._storage: dict[int, StorageSeen] = {}
        # Runs that have data to copy: of others, not every pod is asked for it at each of their news.
        self._copying: set[int] = set()
        self._numbers: defaultdict[int, dict[tuple[str, int], dict[str, int]]] = defaultdict(dict)
        # Runs that lost their owner while pods were left.
        self._unowned: set[int] = set()
        self._troubles: dict[str, Why] = {}
        # By namespace and claim: why there is no volume, and which pods wait for it.
        self._claim_troubles: dict[tuple[str, str], str] = {}
        self._claimed: defaultdict[tuple[str, str], set[str]] = defaultdict(set)
        self._namespaces: set[str] = set()
        # By uid: when pods were deleted; and those that have ended, but nobody knows yet by whom, with the time to decide.
        self._deletions: dict[str, Deletion] = {}
        self._undecided: dict[str, tuple[Object, dt.datetime]] = {}
        # What was not understood, by uid: as it was told last. Of pods that have ended, where they are to be let go.
        self.unread: dict[str, str] = {}
        self.unread_ends: dict[str, tuple[str, str]] = {}

    def capacity(self) -> Capacity:
        return self.shares.capacity()

    def note_node(self, kind: str, node: Object) -> list[Seen]:
        """News of its tasks when it is not heard of any more, or again."""
        name = node["metadata"]["name"]
        before = self.shares.nodes.pop(name, None)
        if kind == "DELETED":
            return []
        now = self.shares.nodes[name] = capacity.node_of(node)
        was_lost, is_lost = before is not None and before.note == capacity.LOST, now.note == capacity.LOST
        return self._note_silence(name, is_lost) if is_lost != was_lost else []

    def _note_silence(self, node: str, is_lost: bool) -> list[Seen]:
        news: list[Seen] = []
        why = (reasons.NODE_LOST, reasons.node_lost(node)) if is_lost else ("", "")
        for uid, pod in self.pods.items():
            if (
                pod.seen.node == node
                and pod.seen.phase == "Running"
                and (is_lost or pod.seen.reason == reasons.NODE_LOST)
            ):
                seen = replace(pod.seen, reason=why[0], message=why[1])
                self.pods[uid] = replace(pod, seen=seen)
                news.append(seen)
        return news

    @property
    def namespaces(self) -> frozenset[str]:
        return frozenset(self._namespaces)

    def note_namespace(self, kind: str, namespace: Object) -> None:
        """In a namespace that is being deleted, Indexed Jobs wait for pods that cannot be made and hold the last ones for
        ever (seen with Kubernetes 1.36): the runs must be ended first."""
        name = namespace["metadata"]["name"]
        if kind == "DELETED":
            self._namespaces.discard(name)
        else:
            self._namespaces.add(name)
        if "deletionTimestamp" in namespace["metadata"]:
            self.left_behind |= {run_id for run_id, owner in self.owners.items() if owner.namespace == name}

    # -- pods ------------------------------------------------------------------------------------------------------

    def note_pod(self, kind: str, pod: Object, now: dt.datetime) -> list[Seen]:
        """The news in an event about a pod; nothing when it only repeats what was told."""
        metadata = pod["metadata"]
        uid, finalizers = metadata["uid"], metadata.get("finalizers") or []
        gone, over = kind == "DELETED", states.is_over(pod)
        if gone and names.METERING in finalizers and "deletionTimestamp" not in metadata:
            # Nothing goes while it has a finalizer, so its labels were taken off: it lives on.
            self._note_damage("Pod", pod, names.METERING)
            return []
        before = self.pods.get(uid)
        node = self.shares.nodes.get(pod["spec"].get("nodeName") or "")
        wanted = (pod["spec"].get("nodeSelector") or {}).get(GPU_MODEL, "")
        vanished_at = now if gone and not over else None
        seen = states.task_seen(pod, gpu_model=node.gpu_model if node else wanted, vanished_at=vanished_at)
        if seen is None:
            if before and not gone:
                self._note_damage("Pod", pod, names.METERING)
            return []
        if before and (seen.run_id, seen.role) != (before.run_id, before.seen.role):
            # Its labels were changed to those of others.
            if not gone:
                self._note_damage("Pod", pod, names.METERING)
                return []
            seen = replace(seen, run_id=before.run_id, role=before.seen.role)
        if not states.is_of_job(pod):
            seen = replace(seen, attempt=self._number(seen))
            self._note_number(pod, seen, gone=gone)
        self._note_deletion(pod, before)
        explained = self._explained(pod, seen, before, lost=node is not None and node.note == capacity.LOST)
        seen = self._decide(pod, seen, now, at_once=gone) if explained is None else explained
        over = over and seen.phase in ("Succeeded", "Failed")
        if gone:
            self._forget_pod(uid, seen.run_id)
        else:
            self._keep_pod(pod, seen, over=over, wanted=wanted)
        if over or gone:
            self._note_stopped(seen.run_id)
        news: list[Seen] = [] if before and before.seen == seen else [seen]
        if seen.phase == "Pending" and reasons.misses_secret(seen.message):
            news += self.parts.changed(uid, 0, seen.run_id, "A Secret of the run was deleted by hand.")
        return [*news, *self._note_storage(seen.run_id), *(self._gone(seen.run_id) if gone else [])]

    def note_unreadable(
        self, kind: str, event: str, thing: Object, before: Pod | None, why: str, now: dt.datetime
    ) -> tuple[bool, list[Seen]]:
        """As if the news had not come; but a pod that has ended holds nothing any more and is to be let go, and one that went is
        gone. Returns whether `why` is news by itself, and what else is."""
        uid, gone = thing["metadata"]["uid"], event == "DELETED"
        news: list[Seen] = []
        if kind == "Pod":
            news += self._put_back(thing, before, now, gone=has_gone(event, thing))
            if has_ended(thing) and not gone and names.METERING in (thing["metadata"].get("finalizers") or []):
                self.unread_ends[uid] = thing["metadata"]["namespace"], thing["metadata"]["name"]
            else:
                self.unread_ends.pop(uid, None)
        told, self.unread[uid] = self.unread.get(uid), why
        if gone:
            del self.unread[uid]
        return why != told, news

    def _put_back(self, pod: Object, before: Pod | None, now: dt.datetime, *, gone: bool) -> Sequence[Seen]:
        uid = pod["metadata"]["uid"]
        known = before or self.pods.get(uid)
        if known is None:
            return []
        news: list[TaskSeen] = []
        # One whose end waits for its Job was understood: that end is told soon.
        if before and not before.over and (gone or (has_ended(pod) and uid not in self._undecided)):
            news = [_unread_end(pod, before.seen, now)]
        if before is None or gone:
            self._forget_pod(uid, known.run_id)
            self._note_stopped(known.run_id)
            return [*news, *self._gone(known.run_id)]
        self.pods[uid] = before
        if news:
            self.pods[uid] = replace(before, seen=news[0], over=True)
            self.shares.note(uid, None)
            self._note_stopped(known.run_id)
        return news

    def _keep_pod(self, pod: Object, seen: TaskSeen, *, over: bool, wanted: str) -> None:
        metadata, uid = pod["metadata"], seen.uid
        gpus = reasons.gpus_of(pod)
        held, leaving = names.METERING in (metadata.get("finalizers") or []), "deletionTimestamp" in metadata
        if seen.role not in (labels := self._labels[seen.run_id]):
            labels[seen.role] = _ours(metadata["labels"])
        if seen.run_id not in self._refs and (ref := ref_of(metadata)):
            self._refs[seen.run_id] = ref
        self.runs[seen.run_id].add(uid)
        stored = states.storage_seen(pod)
        if stored:
            self._copying.add(seen.run_id)
        self.pods[uid] = Pod(
            namespace=metadata["namespace"],
            name=metadata["name"],
            seen=seen,
            storage=stored,
            over=over,
            held=held,
            leaving=leaving,
        )
        if not (held or over or leaving):
            self._note_damage("Pod", pod, names.METERING)
        elif self.damaged:
            self.damaged.pop(uid, None)
        holds = capacity.Held(seen.run_id, seen.node, gpus, wanted, metadata["creationTimestamp"])
        self.shares.note(uid, holds if gpus and not over else None)

    def _forget_pod(self, uid: str, run_id: int) -> None:
        self.pods.pop(uid, None)
        self.runs[run_id].discard(uid)
        for kept in (self.damaged, self._troubles, self.parts.told, self._deletions, self._undecided, self.unread):
            kept.pop(uid, None)
        self.shares.note(uid, None)
        self._forget_rest(run_id)

    def _explained(self, pod: Object, seen: TaskSeen, before: Pod | None, *, lost: bool) -> TaskSeen | None:
        """With what the pod itself does not know: Events about it, its node, its role. None when it cannot be said yet."""
        if seen.phase == "Pending":
            if seen.reason == "Starting" and (why := self._troubles.get(seen.uid)):
                return replace(seen, reason=why[0], message=why[1])
            if seen.reason == "Unschedulable" and "volume" in seen.message:
                for claim in self._note_claims(pod, seen.uid):
                    if trouble := self._claim_troubles.get(claim):
                        return replace(seen, message=reasons.waits_for_volume(seen.message, trouble))
            return seen
        self._troubles.pop(seen.uid, None)
        if seen.phase == "Running" and lost:
            return replace(seen, reason=reasons.NODE_LOST, message=reasons.node_lost(seen.node))
        if seen.phase == "Failed" and seen.reason == "Stopped" and seen.scheduled_at:
            if before and before.over:
                told = before.seen
                return replace(seen, reason=told.reason, message=told.message, disrupted=told.disrupted)
            return self._ended_by(pod, seen)
        return seen

    def _note_claims(self, pod: Object, uid: str) -> list[tuple[str, str]]:
        found = [
            (pod["metadata"]["namespace"], each["persistentVolumeClaim"]["claimName"])
            for each in pod["spec"].get("volumes") or []
            if "persistentVolumeClaim" in each
        ]
        for claim in found:
            self._claimed[claim].add(uid)
        return found

    def _note_deletion(self, pod: Object, before: Pod | None) -> None:
        uid = pod["metadata"]["uid"]
        exact = before is not None and not before.leaving
        if uid not in self._deletions and (deletion := verdicts.deletion_of(pod, exact=exact)):
            self._deletions[uid] = deletion

    def _ended_by(self, pod: Object, seen: TaskSeen) -> TaskSeen | None:
        """Where somebody deleted or suspended the whole Job, its pods are made anew and the program is not to blame. A single
        pod counts as Kubernetes counts it. None as long as nobody can know."""
        owner = self.owners.get(seen.run_id)
        if owner is None:
            return None
        if not owner.wanted:
            return seen
        if job := verdicts.job_of(pod):
            state = self.parts.jobs.at(seen.run_id, job, self._deletions[seen.uid])
            if state is None or state == "stopped":
                return seen if state else None
            if state != "live":
                why = reasons.JOB_DELETED if state == "gone" else reasons.JOB_SUSPENDED
                return replace(seen, reason="Disrupted", message=why, disrupted=True)
        return replace(seen, message=reasons.POD_DELETED)

    def _decide(self, pod: Object, seen: TaskSeen, now: dt.datetime, *, at_once: bool) -> TaskSeen:
        """What to tell of an end as long as nobody knows whose fault it was: that it is near, for a while."""
        _, until = self._undecided.pop(seen.uid, (pod, now + PATIENCE))
        if at_once or now >= until:
            owner = self.owners.get(seen.run_id)
            return replace(seen, message=reasons.POD_DELETED) if owner and owner.wanted else seen
        self._undecided[seen.uid] = pod, until
        return replace(
            seen, phase="Running" if seen.began_at else "Pending", reason="Stopping", message="", finished_at=None,
            exit_code=None, disrupted=False, estimated=False, log_tail="",
        )  # fmt: skip

    def decided(self, now: dt.datetime) -> list[Seen]:
        """News of pods whose end can be told by now. To be asked after other news, and every few seconds."""
        heard = self.parts.jobs.heard
        ripe = [
            pod
            for uid, (pod, until) in self._undecided.items()
            if now >= until or (self.pods[uid].run_id in self.owners and self._deletions[uid].version <= heard)
        ]
        return [item for pod in ripe for item in self.note_pod("MODIFIED", pod, now)]

    def _number(self, seen: TaskSeen) -> int:
        """Which pod of a service's (role, index) this is: what stands on it, or one more than the last that is known."""
        numbers = self._numbers[seen.run_id].setdefault((seen.role, seen.index), {})
        if seen.uid not in numbers:
            numbers[seen.uid] = seen.attempt or max(numbers.values(), default=-1) + 1
        return numbers[seen.uid]

    def _note_number(self, pod: Object, seen: TaskSeen, *, gone: bool) -> None:
        written = not seen.attempt or states.attempt_of(pod) == seen.attempt
        if gone or written:
            self.unnumbered.pop(seen.uid, None)
        else:
            self.unnumbered[seen.uid] = seen

    def _note_storage(self, run_id: int) -> list[Seen]:
        """How far the data of a run is: as far as its last task, but for a failure."""
        if run_id not in self._copying:
            return []
        found = [each for uid in self.runs.get(run_id, ()) if (each := self.pods[uid].storage)]
        if not found:
            return []
        state = min(found, key=lambda each: _STEPS.index(each.state))
        if self._storage.get(run_id) == state:
            return []
        self._storage[run_id] = state
        return [state]

    # -- owners ----------------------------------------------------------------------------------------------------

    def note_owner(self, kind: str, owner: Object) -> list[Seen]:
        metadata = owner["metadata"]
        finalizers, deleted = metadata.get("finalizers") or [], "deletionTimestamp" in metadata
        ref = ref_of(metadata)
        if ref is None or (kind == "DELETED" and names.TOLD in finalizers and not deleted):
            # As with pods.
            self._note_damage("ConfigMap", owner, names.TOLD)
            return []
        run_id = ref.id
        before = self.owners.get(run_id)
        if kind == "DELETED":
            self._forget_run(run_id)
            # With our finalizer taken off it has been told before.
            if not self.runs.get(run_id):
                return [RunGone(run_id, *_stored(metadata))]
            self._unowned.add(run_id)
            return []
        self._refs[run_id] = ref
        self._unowned.discard(run_id)
        self._labels[run_id][""] = _ours(metadata["labels"])
        owner_now = self.owners[run_id] = Owner(
            run_id=run_id,
            namespace=metadata["namespace"],
            name=metadata["name"],
            wanted=not (deleted or _is_ending(metadata)),
            deleted=deleted,
            ending=FOREGROUND in finalizers,
            not_stored=_stored(metadata)[1],
            held=names.TOLD in finalizers,
        )
        if owner_now.wanted or deleted:
            self.stopping.discard(run_id)
        else:
            self.stopping.add(run_id)
        self._look_after(owner_now, owner, before)
        news: list[Seen] = []
        if before is None:
            # So that a listing names every run, also one that has no pods yet.
            news = [self._storage.get(run_id, StorageSeen(run_id, "none"))]
            if not deleted and not _is_ending(metadata):
                news.append(RunFound(run_id, ref))
        return [*news, *self._gone(run_id)]

    def _note_stopped(self, run_id: int) -> None:
        """All its tasks have ended, as was asked for: now everything else is to go."""
        if run_id in self.stopping and all(self.pods[uid].over for uid in self.runs.get(run_id, ())):
            self.left_behind.add(run_id)

    def _look_after(self, owner: Owner, found: Object, before: Owner | None) -> None:
        if owner.ended and self.runs[owner.run_id] and not (before and before.ending):
            self.left_behind.add(owner.run_id)
        self._note_stopped(owner.run_id)
        if not (owner.held or owner.deleted):
            self._note_damage("ConfigMap", found, names.TOLD)
        else:
            self.damaged.pop(found["metadata"]["uid"], None)

    def _forget_run(self, run_id: int) -> None:
        self.stopping.discard(run_id)
        for kept in (self.owners, self._storage, self._numbers):
            kept.pop(run_id, None)
        self._forget_rest(run_id)

    def _forget_rest(self, run_id: int) -> None:
        if run_id not in self.owners and not self.runs[run_id]:
            self._copying.discard(run_id)
            for kept in (self.runs, self._refs, self._labels):
                kept.pop(run_id, None)
            self.parts.jobs.forget(run_id)

    def _gone(self, run_id: int) -> list[Seen]:
        if self.runs.get(run_id):
            return []
        if run_id in self._unowned:
            self._unowned.discard(run_id)
            return [RunGone(run_id)]
        owner = self.owners.get(run_id)
        if owner is None or not owner.ended:
            return []
        return [RunGone(run_id, not owner.not_stored, owner.not_stored)]

    def strays(self) -> Iterator[tuple[str, RunRef]]:
        """Pods and volumes of runs that have no owner (any more), hence nobody who would remove them."""
        for run_id, uids in self.runs.items():
            owner = self.owners.get(run_id)
            alone = owner is None or owner.ended
            if alone and run_id in self._refs and any(not self.pods[uid].leaving for uid in uids):
                yield "Pod", self._refs[run_id]
        for ref in self.parts.volumes.values():
            if ref.id not in self.owners:
                yield "PersistentVolume", ref

    # -- what keeps pods from starting -----------------------------------------------------------------------------

    def note_event(self, event: Object, now: dt.datetime) -> list[Seen]:
        """An Event object: for display only."""
        at = event.get("lastTimestamp") or event.get("eventTime") or event["metadata"].get("creationTimestamp")
        if at is None or now - dt.datetime.fromisoformat(at) > EVENT_AGE:
            return []
        about, text = event["involvedObject"], event.get("message") or ""
        if about.get("namespace") not in self._namespaces:
            return []
        if event["reason"] == "FailedCreate":
            return self.parts.note_refusal((about["kind"], about["namespace"], about["name"]), text)
        if about["kind"] == "Pod":
            return self._note_trouble(about.get("uid", ""), reasons.pod_trouble(event["reason"], text))
        if about["kind"] == "PersistentVolumeClaim" and event["reason"] == "ProvisioningFailed":
            return self._note_claim_trouble(about, text)
        return []

    def _note_trouble(self, uid: str, why: Why | None) -> list[Seen]:
        pod = self.pods.get(uid)
        if why is None or pod is None or pod.seen.phase != "Pending" or not pod.seen.node:
            return []
        before, self._troubles[uid] = self._troubles.get(uid), why
        if pod.seen.reason != "Starting" and (pod.seen.reason, pod.seen.message) != before:
            return []
        seen = replace(pod.seen, reason=why[0], message=why[1])
        if seen == pod.seen:
            return []
        self.pods[uid] = replace(pod, seen=seen)
        return [seen]

    def _note_claim_trouble(self, about: Object, text: str) -> list[Seen]:
        claim = (about["namespace"], about["name"])
        if self._claim_troubles.get(claim) == text:
            return []
        self._claim_troubles[claim] = text
        news: list[Seen] = []
        for uid in list(self._claimed.get(claim, ())):
            pod = self.pods.get(uid)
            if pod is None or pod.seen.reason != "Unschedulable":
                self._claimed[claim].discard(uid)
                continue
            seen = replace(pod.seen, message=reasons.waits_for_volume(pod.seen.message, text))
            if seen != pod.seen:
                self.pods[uid] = replace(pod, seen=seen)
                news.append(seen)
        return news

    # -- damage ----------------------------------------------------------------------------------------------------

    def _note_damage(self, kind: str, thing: Object, finalizer: str) -> None:
        """Its labels or our finalizer were taken off by hand. Without them its end would be missed, so they are put back."""
        metadata = thing["metadata"]
        uid, labels = metadata["uid"], metadata.get("labels") or {}
        run_id, role = names.run_id_of(labels), labels.get(names.ROLE, "")
        if kind == "Pod" and uid in self.pods:
            run_id, role = self.pods[uid].run_id, self.pods[uid].seen.role
        elif kind == "ConfigMap" and run_id is None:
            place = metadata["namespace"], metadata["name"]
            run_id = next((each.run_id for each in self.owners.values() if (each.namespace, each.name) == place), None)
        known = self._labels.get(run_id or 0, {}).get(role) or _ours(labels)
        if run_id is not None:
            wanted = {"uid": uid, "labels": known, "finalizers": [finalizer]}
            self.damaged[uid] = Damage(kind, metadata["namespace"], metadata["name"], wanted)


def _unread_end(pod: Object, seen: TaskSeen, now: dt.datetime) -> TaskSeen:
    """The end of a pod of which nobody understands more than that it has come."""
    has_succeeded = has_ended(pod) and pod["status"]["phase"] == "Succeeded"
    known = [at for at in (seen.scheduled_at, seen.began_at, seen.started_at) if at]
    return replace(
        seen,
        phase="Succeeded" if has_succeeded else "Failed",
        reason="" if has_succeeded else "Lost",
        message="" if has_succeeded else "It has ended; what was told of its end is not understood.",
        finished_at=max([*known, min(finished_at(pod) or now, now)]) if seen.scheduled_at else None,
        disrupted=not has_succeeded,
        estimated=True,
    )


def _ours(labels: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in labels.items() if name.startswith(f"{names.PREFIX}/")}


def _is_ending(metadata: Object) -> bool:
    return names.ENDING in (metadata.get("annotations") or {})


def _stored(metadata: Object) -> tuple[bool, str]:
    message = (metadata.get("annotations") or {}).get(names.NOT_STORED, "")
    return not message, message
