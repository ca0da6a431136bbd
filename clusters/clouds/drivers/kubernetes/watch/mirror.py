"""The watching process's copy of one API server's state; decides which events are news. No network calls.

Every listing rebuilds it, so it may be lost at any time. It serves four purposes: reporting each state once, finding the pod of
a uid whose end was stored, capacity without requests, and finding what `upkeep` must repair. Pods are kept here; the other parts
keep what they need.
"""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from clusters.clouds.drivers.base import Capacity, Node, RunRef, Seen, TaskSeen
from clusters.clouds.drivers.kubernetes.render import names
from clusters.clouds.drivers.kubernetes.repair import drift
from clusters.clouds.drivers.kubernetes.repair.guardrails import Bounds
from clusters.clouds.drivers.kubernetes.repair.tampering import Damages
from clusters.clouds.drivers.kubernetes.settings import GPU_MODEL, IMAGE_SECONDS
from clusters.clouds.drivers.kubernetes.watch import capacity, devices, pod_status, reasons
from clusters.clouds.drivers.kubernetes.watch.admission import Admission, Duty, duty
from clusters.clouds.drivers.kubernetes.watch.attempts import Attempts
from clusters.clouds.drivers.kubernetes.watch.event_warnings import Troubles
from clusters.clouds.drivers.kubernetes.watch.objects import Object, Pod, owner_of
from clusters.clouds.drivers.kubernetes.watch.owned import Parts, ref_of
from clusters.clouds.drivers.kubernetes.watch.pulls import Pulls
from clusters.clouds.drivers.kubernetes.watch.quarantine import has_ended, has_gone
from clusters.clouds.drivers.kubernetes.watch.runs import Runs
from clusters.clouds.drivers.kubernetes.watch.terminations import Ends


class Mirror:
    """`bounds`: required objects of every namespace (`drift.bounds`). `reserved_disk`: bytes of a node's disk that a task
    reserves. `tolerations`: taints that tasks tolerate. `patience`: seconds that an image may fail to be pulled. `topology`:
    labels of nodes that say where they are, from wide to narrow."""

    def __init__(
        self,
        bounds: Mapping[str, drift.Fields] | None = None,
        reserved_disk: float = 0.0,
        tolerations: Sequence[str] = (),
        patience: int = IMAGE_SECONDS,
        topology: Sequence[str] = (),
    ) -> None:
        self._reserved_disk, self._tolerations, self._topology = reserved_disk, tolerations, topology
        self._disks: dict[str, float] = {}
        self.devices = devices.Devices()
        # Nodes without what is known from ResourceSlices, what these add as last counted, and what claims of others hold.
        self._nodes: dict[str, Node] = {}
        self._offered: dict[str, dict[str, int]] = {}
        self._claimed: dict[str, capacity.Held] = {}
        # When silent nodes, or nodes deleted while silent, were last heard; None if unknown.
        self._silent: dict[str, dt.datetime | None] = {}
        self.pods: dict[str, Pod] = {}
        # Those that have ended and are still ours to let go.
        self.held_ends: set[str] = set()
        self._namespaces: set[str] = set()
        self.runs = Runs(self.pods)
        self.parts = Parts(self.runs.wanted)
        self.bounds = Bounds(bounds or drift.bounds())
        self.shares = capacity.Shares()
        self.attempts = Attempts()
        self.pulls = Pulls(dt.timedelta(seconds=patience))
        # How many are before each waiting run in its Kueue queue, as upkeep last read it; None once that is told.
        self.places: Mapping[int, int] | None = None
        self.damages = Damages(self.pods, self.runs.owners)
        self.troubles = Troubles(self.pods, self._namespaces, self.parts)
        self._ends = Ends(self.runs.owners, self.parts.jobs, self.parts.admissions)
        # Unreadable objects by uid: the last reported reason. For pods that have ended: where to release them.
        self.unread: dict[str, str] = {}
        self.unread_ends: dict[str, tuple[str, str]] = {}

    def capacity(self) -> Capacity:
        if self.devices.changed:
            self._count_devices()
        return self.shares.capacity()

    def _count_devices(self) -> None:
        self.devices.changed = False
        before, self._offered = self._offered, self.devices.by_node()
        for name in before.keys() | self._offered:
            if name in self._nodes and before.get(name) != self._offered.get(name):
                self.shares.nodes[name] = devices.with_devices(self._nodes[name], self._offered.get(name, {}))
        claimed, self._claimed = self._claimed, self.devices.held()
        for uid in claimed.keys() | self._claimed:
            self.shares.note_other(uid, self._claimed.get(uid))

    def is_silent(self, node: str) -> bool:
        """Returns whether the node's silence was reported."""
        return node in self._silent

    def note_node(self, kind: str, node: Object, heard: dt.datetime | None = None) -> list[Seen]:
        """Returns news of a node's tasks when it falls silent or answers again. `heard`: when it was last heard, if known better
        than from its status."""
        name = node["metadata"]["name"]
        if kind == "DELETED":
            # Its pods are deleted after this; their end is then when the node was last heard.
            self.shares.nodes.pop(name, None)
            self._nodes.pop(name, None)
            self._disks.pop(name, None)
            return []
        was_silent, is_silent = self.is_silent(name), capacity.is_silent(node)
        if is_silent and not was_silent:
            self._silent[name] = heard or capacity.last_report(node)
        elif not is_silent:
            self._silent.pop(name, None)
        self._disks[name] = capacity.allocatable_of(node)(capacity.DISK)
        self._nodes[name] = capacity.node_of(
            node, self._reserved_disk, self._tolerations, self._silent.get(name), self._topology
        )
        self.shares.nodes[name] = devices.with_devices(self._nodes[name], self._offered.get(name, {}))
        return self._note_silence(name, is_silent) if is_silent != was_silent else []

    def _note_silence(self, node: str, is_lost: bool) -> list[Seen]:
        news: list[Seen] = []
        for uid, pod in self.pods.items():
            if (
                pod.seen.node == node
                and pod.seen.phase in ("Running", "Pending")
                and (is_lost or pod.seen.reason == reasons.NODE_LOST)
            ):
                again = "Starting" if pod.seen.phase == "Pending" else ""
                seen = self._lost(pod.seen) if is_lost else replace(pod.seen, reason=again, message="")
                self.pods[uid] = replace(pod, seen=seen)
                news.append(seen)
        return news

    def _lost(self, seen: TaskSeen) -> TaskSeen:
        message = capacity.node_lost(seen.node, self._silent[seen.node])
        return replace(seen, reason=reasons.NODE_LOST, message=message)

    @property
    def namespaces(self) -> frozenset[str]:
        return frozenset(self._namespaces)

    def note_namespace(self, kind: str, namespace: Object) -> None:
        """Ends the runs of a namespace that is being deleted: otherwise Indexed Jobs wait for pods that cannot be created and
        keep the last ones for ever (seen with Kubernetes 1.36)."""
        name = namespace["metadata"]["name"]
        if kind == "DELETED":
            self._namespaces.discard(name)
        else:
            self._namespaces.add(name)
        self.bounds.note_namespace(kind, namespace, time.monotonic())
        if "deletionTimestamp" in namespace["metadata"]:
            self.runs.leave_behind(name)
        elif kind != "DELETED":
            self.runs.note_living(name)

    def note_part(self, kind: str, what: str, thing: Object) -> list[Seen]:
        """Handles a Service, Ingress, NetworkPolicy, LimitRange or ResourceQuota of a run or a namespace."""
        if what == "ResourceQuota":
            self.parts.note_quota(kind, thing)
        metadata = thing["metadata"]
        if what in ("Service", "Ingress", "NetworkPolicy") and (
            ref_of(metadata) or self.parts.is_known(metadata["uid"])
        ):
            return self.parts.note_part(kind, what, thing)
        if what not in ("Service", "Ingress"):
            self.bounds.note_part(kind, what, thing, time.monotonic())
        return []

    def note_admission(self, kind: str, workload: Object) -> list[Seen]:
        """Handles the Workload of a run in a Kueue queue."""
        return self.parts.note_admission(kind, workload)

    def queue_news(self) -> list[Seen]:
        """Returns news of places in queues that upkeep has read."""
        before, self.places = self.places, None
        return [] if before is None else self.parts.note_places(before)

    def duties(self) -> Iterator[tuple[Duty, Admission]]:
        """Yields what the portal owes Kueue now."""
        for run_id, found in list(self.parts.admissions.of.items()):
            if self.runs.wanted(run_id):
                pods = [self.pods[uid] for uid in self.runs.uids(run_id)]
                states = [(pod.seen.role, pod.seen.index, pod.seen.phase, pod.over) for pod in pods]
                if owed := duty(found, self.parts.makers_of(run_id), states):
                    yield owed, found

    # -- pods ------------------------------------------------------------------------------------------------------

    def note_pod(self, kind: str, pod: Object, now: dt.datetime) -> list[Seen]:
        """Returns the news in an event about a pod; [] if it was reported before."""
        metadata = pod["metadata"]
        uid, finalizers = metadata["uid"], metadata.get("finalizers") or []
        gone, over = kind == "DELETED", pod_status.is_over(pod)
        if gone and names.METERING in finalizers and "deletionTimestamp" not in metadata:
            # An object with a finalizer cannot be deleted: it lives on, and its labels were removed.
            self.damages.note("Pod", pod, names.METERING)
            return []
        before = self.pods.get(uid)
        node = self.shares.nodes.get(pod["spec"].get("nodeName") or "")
        wanted = (pod["spec"].get("nodeSelector") or {}).get(GPU_MODEL, "")
        vanished_at = now if gone and not over else None
        seen = pod_status.task_seen(pod, gpu_model=node.gpu_model if node else wanted, vanished_at=vanished_at)
        if seen is None:
            if before and not gone:
                self.damages.note("Pod", pod, names.METERING)
            return []
        if before and (seen.run_id, seen.role) != (before.run_id, before.seen.role):
            # Its labels were changed to those of another run or role.
            if not gone:
                self.damages.note("Pod", pod, names.METERING)
                return []
            seen = replace(seen, run_id=before.run_id, role=before.seen.role)
        if heard := self._silent.get(seen.node):
            seen = pod_status.not_after(heard, seen)
        if not pod_status.is_of_job(pod):
            seen = self.attempts.counted(pod, seen, gone=gone)
        self._ends.note_deletion(pod, before)
        explained = self._explained(pod, seen, before)
        seen = (
            self._ends.decide(pod, seen, now, at_once=gone) if explained is None else self.pulls.judged(explained, now)
        )
        over = over and seen.phase in ("Succeeded", "Failed")
        if gone:
            self._forget_pod(uid, seen.run_id)
        else:
            self._keep_pod(pod, seen, over=over)
        if over or gone:
            self.runs.note_stopped(seen.run_id)
        news: list[Seen] = [] if before and before.seen == seen else [seen]
        if seen.phase == "Pending" and reasons.misses_secret(seen.message):
            news += self.parts.changed(uid, "", seen.run_id, "A Secret of the run was deleted by hand.")
        news += [*self.runs.storage_news(seen.run_id), *self.runs.endpoint_news(seen.run_id)]
        return [*news, *(self.runs.gone(seen.run_id) if gone else [])]

    def note_other_pod(self, kind: str, pod: Object) -> list[Seen]:
        """Counts the resources of a pod of other software, without news."""
        there = kind != "DELETED" and not pod_status.is_over(pod)
        holds = (
            capacity.Held(
                None, pod["spec"].get("nodeName") or "", capacity.asked_by(pod), devices=capacity.devices_by(pod)
            )
            if there
            else None
        )
        self.shares.note_other(pod["metadata"]["uid"], holds)
        return []

    def decided(self, now: dt.datetime) -> list[Seen]:
        """Returns news of pods whose end is decided by now, or whose image was awaited too long. Call it after other news, and
        every few seconds."""
        news = [item for pod in self._ends.ripe(now) for item in self.note_pod("MODIFIED", pod, now)]
        for uid in self.pulls.overdue(now):
            waits = self.pods.get(uid)
            if waits and waits.seen.reason == reasons.PULLING:
                seen = self.pulls.judged(waits.seen, now)
                self.pods[uid] = replace(waits, seen=seen)
                news.append(seen)
        return news

    def _explained(self, pod: Object, seen: TaskSeen, before: Pod | None) -> TaskSeen | None:
        """Adds what the pod itself does not know: Events, its node, its Job. Returns None if that is not known yet."""
        if seen.phase in ("Running", "Pending") and self.is_silent(seen.node):
            return self._lost(seen)
        if seen.phase == "Pending":
            if seen.reason in reasons.NO_NODE and capacity.DISK in seen.message:
                most = max(self._disks.values(), default=0.0)
                seen = replace(seen, message=reasons.waits_for_disk(pod, seen.message, most))
            return self.troubles.explained(pod, seen)
        self.troubles.forget(seen.uid)
        if seen.phase == "Failed" and seen.reason == "Stopped" and seen.scheduled_at:
            return self._ends.explained(pod, seen, before)
        return seen

    def _keep_pod(self, pod: Object, seen: TaskSeen, *, over: bool) -> None:
        metadata, uid = pod["metadata"], seen.uid
        asked = capacity.asked_by(pod)
        held, leaving = names.METERING in (metadata.get("finalizers") or []), "deletionTimestamp" in metadata
        stored = pod_status.storage_seen(pod)
        self.damages.note_pod(seen.run_id, seen.role, metadata)
        self.runs.note_pod(uid, seen.run_id, metadata, stored)
        self.pods[uid] = Pod(
            namespace=metadata["namespace"],
            name=metadata["name"],
            seen=seen,
            storage=stored,
            over=over,
            held=held,
            leaving=leaving,
            serves=pod_status.serves(pod),
        )
        if over and held:
            self.held_ends.add(uid)
        else:
            self.held_ends.discard(uid)
        if self.pods[uid].serves:
            self.runs.note_serving(seen.run_id)
        if not (held or over or leaving):
            self.damages.note("Pod", pod, names.METERING)
        else:
            self.damages.mended(uid)
        holds = capacity.Held(seen.run_id, seen.node, asked, capacity.devices_by(pod))
        self.shares.note(uid, holds if (seen.node or asked[0]) and not over else None)

    def _forget_pod(self, uid: str, run_id: int) -> None:
        for kept in (self.pods, self.parts.told, self.unread):
            kept.pop(uid, None)
        self.held_ends.discard(uid)
        self._ends.forget(uid)
        self.pulls.forget(uid)
        self.troubles.forget(uid)
        self.damages.mended(uid)
        self.shares.note(uid, None)
        if self.runs.forget_pod(uid, run_id):
            self._forget_run(run_id)

    def _forget_run(self, run_id: int) -> None:
        """Forgets a run without owner and pods."""
        self.damages.forget(run_id)
        self.parts.jobs.forget(run_id)
        self.parts.admissions.forget(run_id)

    # -- what is not understood ------------------------------------------------------------------------------------

    def note_unreadable(
        self, kind: str, event: str, thing: Object, before: Pod | None, why: str
    ) -> tuple[bool, Sequence[Seen]]:
        """Ignores the event, except that an unreadable pod that has ended is released and forgotten as if deleted: the next
        listing reports it lost. Returns whether `why` is new, and the news."""
        uid = thing["metadata"]["uid"]
        news = self._note_unreadable_pod(event, thing, before) if kind == "Pod" else []
        told, self.unread[uid] = self.unread.get(uid), why
        if event == "DELETED":
            del self.unread[uid]
        return why != told, news

    def _note_unreadable_pod(self, event: str, pod: Object, before: Pod | None) -> Sequence[Seen]:
        metadata, gone, ended = pod["metadata"], has_gone(event, pod), has_ended(pod)
        uid, known = metadata["uid"], before or self.pods.get(metadata["uid"])
        self.unread_ends.pop(uid, None)
        # An end that was readable has been reported, or waits for its Job.
        if before and not gone and (before.over or self._ends.is_undecided(uid) or not ended):
            self.pods[uid] = before
            return []
        if ended and event != "DELETED" and names.METERING in (metadata.get("finalizers") or []):
            self.unread_ends[uid] = metadata["namespace"], metadata["name"]
        if known is None:
            return []
        self._forget_pod(uid, known.run_id)
        self.runs.note_stopped(known.run_id)
        return self.runs.gone(known.run_id)

    # -- owners ----------------------------------------------------------------------------------------------------

    def note_owner(self, kind: str, owner: Object) -> list[Seen]:
        metadata = owner["metadata"]
        finalizers, deleted = metadata.get("finalizers") or [], "deletionTimestamp" in metadata
        ref = ref_of(metadata)
        if ref is None or (kind == "DELETED" and names.TOLD in finalizers and not deleted):
            # As with pods: it lives on without its labels.
            self.damages.note("ConfigMap", owner, names.TOLD)
            return []
        if kind == "DELETED":
            self.attempts.forget(ref.id)
            if self.runs.forget_owner(ref.id):
                self._forget_run(ref.id)
            return self.runs.without_owner(ref.id, metadata)
        found = owner_of(owner, ref.id)
        self.damages.note_owner(ref.id, metadata)
        self.parts.absent.note_owner(ref.id, metadata)
        news = self.runs.note_owner(found, ref)
        if not (found.held or found.deleted):
            self.damages.note("ConfigMap", owner, names.TOLD)
        else:
            self.damages.mended(metadata["uid"])
        return news

    def strays(self) -> Iterator[tuple[str, RunRef]]:
        """Yields pods and volumes of runs without an owner, which nothing else would delete."""
        for ref in self.runs.strays():
            yield "Pod", ref
        for ref in self.parts.volumes.values():
            if ref.id not in self.runs.owners:
                yield "PersistentVolume", ref
