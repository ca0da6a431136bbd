"""Background work of the watching process in a Kubernetes cluster: releases pods and owners whose end is stored, restores what
others removed from them, and deletes leftovers.

Its only state is the mirror, so it may be interrupted anywhere: the next listing finds what is left.
"""

from __future__ import annotations

import datetime as dt
import logging
import threading
import time
from collections.abc import Callable, Hashable, Iterable, Mapping
from contextlib import suppress
from typing import Any

from clusters.clouds.drivers.base import CloudError, RunGone, RunRef, Seen, TaskSeen
from clusters.clouds.drivers.kubernetes.api import kueue
from clusters.clouds.drivers.kubernetes.api.client import MERGE, METADATA_LIST, STRATEGIC, Client, path_of
from clusters.clouds.drivers.kubernetes.api.errors import Missing, Refused, Taken
from clusters.clouds.drivers.kubernetes.render import gangs, manifests, names
from clusters.clouds.drivers.kubernetes.repair.tampering import Damage
from clusters.clouds.drivers.kubernetes.watch import admission
from clusters.clouds.drivers.kubernetes.watch.absent import Key
from clusters.clouds.drivers.kubernetes.watch.admission import Admission, Duty
from clusters.clouds.drivers.kubernetes.watch.mirror import Mirror
from clusters.clouds.drivers.kubernetes.watch.objects import Owner, Pod

log = logging.getLogger(__name__)

# Seconds: how long a suspected leftover waits for news that explain it; pause before a retry.
STRAY_AGE = 10.0
AGAIN = 2.0
RETRY_AT_ONCE = 20
# Seconds after which the owner is deleted even if pods of a scaled-down workload remain: its controller may be down.
STOP_SECONDS = 20.0
# Minimum seconds between two repairs of one namespace, in case somebody undoes them again and again.
BIND_AGAIN = 30.0
# Seconds between checks of the claims of saved environments and cached inputs, and how long an unused claim is kept.
UNUSED = ("unused",)
UNUSED_AGAIN, UNUSED_KEPT = 3600.0, dt.timedelta(days=30)
# Seconds between two looks at the places of runs in Kueue queues.
PLACES, PLACES_AGAIN = ("places",), 15.0
KUEUE_AGAIN = 0.2


class Upkeep:
    """Upkeep for one mirror. `bound` repairs a namespace. `cache_space`: maximum bytes of all cached inputs. The watching thread
    calls `after`, which returns at once."""

    def __init__(
        self, client: Client, portal: str, mirror: Mirror, bound: Callable[[str], None], cache_space: float
    ) -> None:
        self._client = client
        self._portal = portal
        self.mirror = mirror
        self._bound = bound
        self._cache_space = cache_space
        self._due: dict[str, Pod | Owner] = {}
        self._busy: set[Hashable] = set()
        self._not_before: dict[Hashable, float] = {}
        self._stopping_since: dict[int, float] = {}
        self._stray_since: dict[tuple[str, RunRef], float] = {}
        self._lock = threading.Lock()

    def after(self, items: Iterable[Seen]) -> None:
        """Follows up on `items`, which are stored now, and retries what failed before."""
        for item in items:
            if isinstance(item, TaskSeen):
                pod = self.mirror.pods.get(item.uid)
                if pod and pod.over and pod.held:
                    self._due[item.uid] = pod
            elif isinstance(item, RunGone) and (owner := self.mirror.runs.owners.get(item.run_id)) and owner.held:
                self._due[f"run {item.run_id}"] = owner
        with self._lock:
            now = time.monotonic()
            self._not_before = {key: at for key, at in self._not_before.items() if at > now}
        counting = {seen.run_id for seen in self.mirror.attempts.unwritten.values()}
        for uid in list(self.mirror.attempts.unwritten):
            self._begin(("number", uid), self._number_pod, uid)
        for name, held in list(self._due.items()):
            if held.run_id not in counting:
                self._begin(name, self._release, name)
        for uid, place in list(self.mirror.unread_ends.items()):
            self._begin(("unreadable", uid), self._let_go, uid, *place)
        self._put_right()

    def _put_right(self) -> None:
        mirror, now = self.mirror, time.monotonic()
        self._stopping_since = {run_id: self._stopping_since.get(run_id, now) for run_id in mirror.runs.stopping}
        mirror.runs.left_behind |= {run_id for run_id, at in self._stopping_since.items() if now - at > STOP_SECONDS}
        for run_id in list(mirror.runs.left_behind):
            mirror.runs.left_behind.discard(run_id)
            owner = mirror.runs.owners.get(run_id)
            if owner and not self._begin(("end", run_id), self._end, owner):
                mirror.runs.left_behind.add(run_id)
        for owner, run in list(mirror.runs.bound_gangs()):
            self._begin(("gang", run.id), self._open_gang, owner, run)
        for uid, damage in list(mirror.damages.found.items()):
            self._begin(("repair", uid), self._repair, damage)
        for namespace in list(mirror.bounds.found):
            self._begin(("bind", namespace), self._bound, namespace)
        for key in list(mirror.parts.retry)[:RETRY_AT_ONCE]:
            if self._begin(("retry", key), self._nudge, key):
                mirror.parts.retry.pop(key, None)
        for owed, found in mirror.duties():
            self._begin(("kueue", owed, found.run_id), self._answer_kueue, owed, found)
        if mirror.parts.admissions.waiting():
            self._begin(PLACES, self._read_places)
        self._look_for_strays()
        self._begin(UNUSED, self._remove_unused)

    def _begin(self, key: Hashable, task: Callable[..., None], *arguments: Any) -> bool:
        """Starts a background task. Returns False if it is running or ended less than AGAIN ago: call again later."""
        with self._lock:
            if key in self._busy or self._not_before.get(key, 0.0) > time.monotonic():
                return False
            self._busy.add(key)
        self._client.in_background(self._do, key, task, *arguments)
        return True

    def _do(self, key: Hashable, task: Callable[..., None], *arguments: Any) -> None:
        wait = 0.0
        if isinstance(key, tuple):
            pauses = {"unused": UNUSED_AGAIN, "bind": BIND_AGAIN, "places": PLACES_AGAIN, "kueue": KUEUE_AGAIN}
            wait = pauses.get(key[0], AGAIN)
        try:
            task(*arguments)
        except CloudError as error:
            log.warning("%s of %s is tried again: %s", task.__name__, key, error)
            wait = max(wait if key == UNUSED else AGAIN, error.after or 0.0)
        except Exception:
            log.exception("%s of %s is tried again", task.__name__, key)
            wait = 10 * AGAIN
        finally:
            with self._lock:
                self._busy.discard(key)
                if wait:
                    self._not_before[key] = time.monotonic() + wait

    # -- letting go --------------------------------------------------------------------------------------------------

    def _release(self, key: str) -> None:
        held = self._due[key]
        if isinstance(held, Pod):
            self._release_pod(key, held)
        else:
            self._release_owner(held)
        del self._due[key]

    def _release_pod(self, uid: str, pod: Pod) -> None:
        if pod.not_stored:
            self._note_not_stored(pod, pod.not_stored)
        owner = self.mirror.runs.owners.get(pod.run_id)
        # The pods of a run that ends need no counting, so we also remove the Job controller's finalizer, which it would remove
        # pod by pod.
        ours = [names.METERING] if owner is None or owner.wanted else [names.METERING, names.COUNTED]
        without = {"$deleteFromPrimitiveList/finalizers": ours}
        self._patch(path_of("Pod", pod.namespace, pod.name), {"uid": uid, **without})

    def _let_go(self, uid: str, namespace: str, name: str) -> None:
        """Releases an unreadable pod that has ended: its text is stored for people by now."""
        without = {"$deleteFromPrimitiveList/finalizers": [names.METERING]}
        self._patch(path_of("Pod", namespace, name), {"uid": uid, **without})
        self.mirror.unread_ends.pop(uid, None)

    def _release_owner(self, owner: Owner) -> None:
        # Volumes have no namespace, hence no owner. One not yet known is found later as a stray.
        if any(ref.id == owner.run_id for ref in list(self.mirror.parts.volumes.values())):
            label = names.selector(portal=self._portal, run_id=owner.run_id)
            self._client.delete(path_of("PersistentVolume"), labelSelector=label)
        without = {"$deleteFromPrimitiveList/finalizers": [names.TOLD]}
        self._patch(path_of("ConfigMap", owner.namespace, owner.name), without)

    def _note_not_stored(self, pod: Pod, why: str) -> None:
        owner = self.mirror.runs.owners.get(pod.run_id)
        if owner:
            metadata = {"annotations": {names.NOT_STORED: f"{pod.seen.role}-{pod.seen.index}: {why}"}}
            self._patch(path_of("ConfigMap", owner.namespace, owner.name), metadata)

    def _number_pod(self, uid: str) -> None:
        """Writes the attempt on its pod; repeated until the watch shows it."""
        pod, seen = self.mirror.pods.get(uid), self.mirror.attempts.unwritten.get(uid)
        if pod and seen:
            metadata = {"uid": uid, "annotations": {names.ATTEMPT: str(seen.attempt)}}
            self._patch(path_of("Pod", pod.namespace, pod.name), metadata)

    # -- putting right -----------------------------------------------------------------------------------------------

    def _end(self, owner: Owner) -> None:
        """Deletes an owner whose tasks have ended. Also ends a run whose owner or namespace was deleted by hand, with default
        propagation: everything it owns must go, too."""
        if found := self.mirror.parts.admissions.of.get(owner.run_id):
            kueue.say_finished(self._client, found.namespace, found.name)
        try:
            self._client.delete(path_of("ConfigMap", owner.namespace, owner.name), propagation="Foreground")
        except Missing:
            return
        except CloudError:
            self.mirror.runs.left_behind.add(owner.run_id)
            raise

    def _answer_kueue(self, owed: Duty, found: Admission) -> None:
        """Does what is owed; repeated until the watch shows it."""
        try:
            if owed == "clear":
                kueue.clear_reservation(
                    self._client, found.workload, admission.cleared(found.workload, dt.datetime.now(dt.UTC))
                )
            elif owed == "ready":
                kueue.say_ready(self._client, found.workload)
            else:
                done = admission.reclaimable(found, self.mirror.parts.makers_of(found.run_id))
                kueue.say_reclaimable(self._client, found.workload, done)
        except Missing:
            return

    def _read_places(self) -> None:
        waiting = self.mirror.parts.admissions.waiting()
        read = {place: kueue.places(self._client, *place) for place in waiting}
        self.mirror.places = {
            each.run_id: read[place][each.name]
            for place, found in waiting.items()
            for each in found
            if each.name in read[place]
        }

    def _open_gang(self, owner: Owner, run: RunRef) -> None:
        """Lets single pods of a run get nodes from now on. The count of a group can be changed since Kubernetes 1.37; before,
        another group takes its place. New pods wait while it is away, and are scheduled when there is the next one."""
        path = gangs.path(owner.gang, run.namespace, gangs.name(run))
        try:
            self._client.patch(path, {"spec": gangs.policy(gangs.OPEN)})
        except Missing:
            self._make_open(owner, run)
        except Refused:
            # Its finalizer keeps it as long as it has pods: it protects them from a group that does not come back.
            with suppress(Missing):
                self._client.delete(path)
                self._client.patch(path, {"metadata": {"finalizers": None}})
            self._make_open(owner, run)
        with suppress(Missing):
            note = {"metadata": {"annotations": {names.GANG: None}}}
            self._client.patch(path_of("ConfigMap", owner.namespace, owner.name), note)

    def _make_open(self, owner: Owner, run: RunRef) -> None:
        made = manifests.of_run([gangs.manifest(run, owner.gang, gangs.OPEN)], run, owner.uid, self._portal)
        try:
            self._client.request("POST", gangs.path(owner.gang, run.namespace), body=made[0])
        except Taken as error:
            raise CloudError("An apply has made the group again meanwhile.") from error
        except Missing:
            log.info("run %s: this cluster serves no %s of %s any more", run.id, gangs.PLURAL, owner.gang)

    def _repair(self, damage: Damage) -> None:
        """Restores metadata; repeated until the watch shows it. Objects being deleted accept no new finalizer."""
        path = path_of(damage.kind, damage.namespace, damage.name)
        try:
            self._patch(path, damage.metadata)
        except Refused:
            self._patch(path, {name: value for name, value in damage.metadata.items() if name != "finalizers"})
        log.warning("%s %s/%s had been changed by hand", damage.kind, damage.namespace, damage.name)

    def _nudge(self, key: Key) -> None:
        """Makes a controller retry now by changing its object."""
        kind, namespace, name = key
        note = {"metadata": {"annotations": {f"{names.PREFIX}/retried-at": f"{time.time():.0f}"}}}
        try:
            self._client.patch(path_of(kind, namespace, name), note, MERGE)
        except Missing:
            return

    def _look_for_strays(self) -> None:
        found, now = set(self.mirror.strays()), time.monotonic()
        self._stray_since = {stray: self._stray_since.get(stray, now) for stray in found}
        for stray, since in self._stray_since.items():
            if now - since > STRAY_AGE:
                self._begin(("stray", stray), self._clear_away, *stray)

    def _clear_away(self, kind: str, run: RunRef) -> None:
        """Deletes objects of a run without owner. The watches are not synchronized, so it first asks the API server for the
        owner; one that lost its labels while nobody watched gets them back."""
        owners = path_of("ConfigMap", run.namespace)
        for owner in self._client.get(owners, fieldSelector=f"metadata.name={names.owner_name(run)}")["items"]:
            metadata = owner["metadata"]
            if "deletionTimestamp" not in metadata or names.TOLD in (metadata.get("finalizers") or []):
                labels = {**names.run_labels(self._portal, run), names.OWNER: "run"}
                self._patch(f"{owners}/{metadata['name']}", {"uid": metadata["uid"], "labels": labels})
                if "deletionTimestamp" not in metadata:
                    return
        log.warning("clearing away what is left of run %s: %s", run.id, kind)
        label = names.selector(portal=self._portal, run_id=run.id)
        self._client.delete(path_of(kind, run.namespace), labelSelector=label)

    def _remove_unused(self) -> None:
        remove_claims(self._client, self._portal, names.ENVIRONMENT, float("inf"))
        remove_claims(self._client, self._portal, names.CACHE, self._cache_space)

    def _patch(self, path: str, metadata: Mapping[str, Any]) -> None:
        try:
            self._client.patch(path, {"metadata": metadata}, STRATEGIC)
        except Missing:
            return


def remove_claims(client: Client, portal: str, label: str, space: float) -> float:
    """Deletes claims with `label` that no run uses: those unused for UNUSED_KEPT, and the least recently used ones while all
    exceed `space` bytes. They are made again on demand. A run that starts marks its claim first, which then fails the
    precondition here. Returns the bytes that remain."""
    last = (dt.datetime.now(dt.UTC) - UNUSED_KEPT).isoformat(timespec="seconds")
    ours = f"{names.selector(portal=portal)},{label}"
    pages = client.pages(path_of("PersistentVolumeClaim"), accept=METADATA_LIST, labelSelector=ours)
    found = [claim["metadata"] for page in pages for claim in page["items"] or ()]
    noted = [(metadata.get("annotations") or {}, metadata) for metadata in found if "deletionTimestamp" not in metadata]
    held = sum(float(notes.get(names.BYTES, 0)) for notes, _ in noted)
    for notes, metadata in sorted(noted, key=lambda each: each[0].get(names.USED, "")):
        if notes.get(names.USED, "") >= last and held <= space:
            continue
        of_runs = f"{names.selector(portal=portal)},{label}={metadata['labels'][label]}"
        if client.get(path_of("ConfigMap", metadata["namespace"]), labelSelector=of_runs)["items"]:
            continue
        as_seen = {"preconditions": {"resourceVersion": metadata["resourceVersion"]}}
        with suppress(Missing):
            path = path_of("PersistentVolumeClaim", metadata["namespace"], metadata["name"])
            client.request("DELETE", path, body=as_seen)
        held -= float(notes.get(names.BYTES, 0))
        log.info("claim %s/%s was not used for long", metadata["namespace"], metadata["name"])
    return held
