"""`base.Cloud` over a Kubernetes API server.

A run is one owner and what it owns. Launching is server-side apply of the owner and then of everything else side by side;
ending is one DELETE of the owner with foreground propagation, after which the owner outlives all that it owned: that it is
left alone is the moment at which the run is gone. Two finalizers keep what has not been written down yet: one on every
pod until its end is in the database, one on the owner until RunGone is. `acknowledge` takes them off.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from clusters.clouds.base import (
    Batch,
    Capacity,
    CloudError,
    LogChunk,
    Plan,
    RunGone,
    RunRef,
    Seen,
    SourceKind,
    TaskSeen,
    VolumeRef,
    VolumeSource,
)
from clusters.clouds.kubernetes import inside, manifests, names, states, storage
from clusters.clouds.kubernetes.client import STRATEGIC, Client, Missing, Taken, path_of
from clusters.clouds.kubernetes.mirror import Owner, Pod
from clusters.clouds.kubernetes.settings import Settings
from clusters.clouds.kubernetes.watch import Follower

log = logging.getLogger(__name__)


class KubernetesCloud:
    """One Kubernetes cluster. Safe in many threads; only one of them lists and watches."""

    mounts: frozenset[SourceKind] = frozenset({"s3", "nfs", "volume"})

    def __init__(self, client: Client, settings: Settings, name: str = "kubernetes") -> None:
        self.name = name
        self._client = client
        self._settings = settings
        self._follower = Follower(client, settings.portal)
        self._namespaces: set[str] = set()
        self._due: dict[str, Pod | Owner] = {}
        self._busy: set[str] = set()
        self._lock = threading.Lock()

    def reserve(self, run: RunRef, counts: Mapping[str, int]) -> dict[tuple[str, int], str]:
        """Names follow from the run, so nothing has to be made for them."""
        return {
            (role, index): names.address(run, role, index) for role, count in counts.items() for index in range(count)
        }

    def apply(self, plan: Plan) -> None:
        manifests.check(plan, self._settings)
        owner = self._apply_owner(plan.run)
        if "deletionTimestamp" in owner["metadata"]:
            return
        sources = [mount.source for mount in plan.mounts if isinstance(mount.source, VolumeSource)]
        volumes = {source.volume.id: source for source in sources}
        made = [storage.volume_manifest(source, self._settings) for source in volumes.values()]
        made += manifests.run_manifests(plan, owner["metadata"]["uid"], self._settings)
        # Should the run be deleted meanwhile, the garbage collector finds what it owned without an owner and removes it.
        self._client.apply_all([each for each in made if not manifests.is_queued(each)])
        for queued in filter(manifests.is_queued, made):
            self._hand_to_kueue(queued)

    def _hand_to_kueue(self, job: Mapping[str, Any]) -> None:
        """Not by force: what Kueue has begun to manage is not suspended again."""
        try:
            self._client.apply(job, force="false")
        except Taken:
            log.info("job %s is Kueue's by now", job["metadata"]["name"])

    def delete(self, run: RunRef) -> None:
        path = path_of("ConfigMap", run.namespace, names.owner_name(run))
        try:
            self._client.delete(path, propagation="Foreground")
        except Missing:
            # Never seen, or gone before anybody knew: an owner of nothing brings the news by the watch.
            self._apply_owner(run)
            self._client.delete(path, propagation="Foreground")

    def _apply_owner(self, run: RunRef) -> Mapping[str, Any]:
        return self._apply_inside(manifests.owner_manifest(run, self._settings))

    def _apply_inside(self, manifest: Mapping[str, Any]) -> Mapping[str, Any]:
        """Makes its namespace, too, when it is not there."""
        namespace = manifest["metadata"]["namespace"]
        known = namespace in self._namespaces
        if not known:
            self._apply_namespace(namespace)
        try:
            return self._client.apply(manifest)
        except Missing:
            if not known:
                raise
            self._apply_namespace(namespace)
            return self._client.apply(manifest)

    def _apply_namespace(self, namespace: str) -> None:
        """Once in a process: what an administrator changed in it by hand meanwhile is left alone until the next."""
        first, *inside_it = manifests.namespace_manifests(namespace, self._settings)
        self._client.apply(first)
        self._client.apply_all(inside_it)
        self._namespaces.add(namespace)

    def purge(self, run: RunRef) -> None:
        """Logs go with their pods."""

    def apply_volume(self, source: VolumeSource) -> None:
        manifests.check_volume(source, self._settings)
        self._apply_inside(storage.volume_manifest(source, self._settings))

    def delete_volume(self, volume: VolumeRef) -> None:
        """Kubernetes keeps it as long as a pod mounts it, and deletes the data as its class says."""
        try:
            self._client.delete(path_of("PersistentVolumeClaim", volume.namespace, names.claim_name(volume)))
        except Missing:
            return

    # -- what happened ---------------------------------------------------------------------------------------------

    def list(self) -> Batch:
        return self._follower.list()

    def watch(self, since: str) -> Iterator[Batch]:
        return self._follower.watch(since)

    def capacity(self) -> Capacity:
        mirror = self._follower.mirror
        if mirror is None:
            other = Follower(self._client, self._settings.portal)
            other.list()
            mirror = other.mirror
            assert mirror is not None
        return mirror.capacity()

    def acknowledge(self, items: Sequence[Seen]) -> None:
        """Takes finalizers off in the background; what fails is tried again at the next call."""
        mirror = self._follower.mirror
        if mirror is None:
            return
        for item in items:
            if isinstance(item, TaskSeen):
                pod = mirror.pods.get(item.uid)
                if pod and pod.over and pod.held:
                    self._due[item.uid] = pod
            elif isinstance(item, RunGone) and (owner := mirror.owners.get(item.run_id)) and owner.held:
                self._due[f"run {item.run_id}"] = owner
        for uid in list(mirror.unnumbered):
            self._client.in_background(self._number_pod, uid)
        for run_id in mirror.take_left_behind():
            self._client.in_background(self._delete_all, mirror.owners[run_id])
        with self._lock:
            counting = {seen.run_id for seen in mirror.unnumbered.values()}
            begin = [
                key for key, held in list(self._due.items()) if key not in self._busy and held.run_id not in counting
            ]
            self._busy.update(begin)
        for key in begin:
            self._client.in_background(self._release, key)

    def _release(self, key: str) -> None:
        try:
            held = self._due[key]
            if isinstance(held, Pod):
                self._release_pod(key, held)
            else:
                self._release_owner(held)
            del self._due[key]
        except CloudError as error:
            log.warning("the finalizer of %s stays for now: %s", key, error)
        except Exception:
            log.exception("the finalizer of %s stays for now", key)
        finally:
            self._busy.discard(key)

    def _number_pod(self, uid: str) -> None:
        """Writes down which pod of its task it is; tried again by the next call until the watch shows it."""
        mirror = self._follower.mirror
        pod, seen = (mirror.pods.get(uid), mirror.unnumbered.get(uid)) if mirror else (None, None)
        if pod and seen:
            metadata = {"uid": uid, "annotations": {names.ATTEMPT: str(seen.attempt)}}
            try:
                self._patch(path_of("Pod", pod.namespace, pod.name), metadata)
            except CloudError as error:
                log.warning("the number of pod %s is not written yet: %s", pod.name, error)

    def _delete_all(self, owner: Owner) -> None:
        """An owner or its namespace was deleted by hand, as one deletes any object: what it owns is to go all the same."""
        try:
            self._client.delete(path_of("ConfigMap", owner.namespace, owner.name), propagation="Foreground")
        except Missing:
            return
        except CloudError as error:
            log.warning("what belongs to run %s stays for now: %s", owner.run_id, error)
            if self._follower.mirror:
                self._follower.mirror.left_behind.add(owner.run_id)

    def _release_pod(self, uid: str, pod: Pod) -> None:
        if pod.storage and pod.storage.state == "failed":
            self._note_not_stored(pod, pod.storage.message)
        without = {"$deleteFromPrimitiveList/finalizers": [names.METERING]}
        self._patch(path_of("Pod", pod.namespace, pod.name), {"uid": uid, **without})

    def _release_owner(self, owner: Owner) -> None:
        # Volumes have no namespace and hence no owner.
        label = names.selector(portal=self._settings.portal, run_id=owner.run_id)
        self._client.delete(path_of("PersistentVolume"), labelSelector=label)
        without = {"$deleteFromPrimitiveList/finalizers": [names.TOLD]}
        self._patch(path_of("ConfigMap", owner.namespace, owner.name), without)

    def _note_not_stored(self, pod: Pod, why: str) -> None:
        mirror = self._follower.mirror
        owner = mirror.owners.get(pod.run_id) if mirror else None
        if owner:
            metadata = {"annotations": {names.NOT_STORED: f"{pod.seen.role}-{pod.seen.index}: {why}"}}
            self._patch(path_of("ConfigMap", owner.namespace, owner.name), metadata)

    def _patch(self, path: str, metadata: Mapping[str, Any]) -> None:
        try:
            self._client.patch(path, {"metadata": metadata}, STRATEGIC)
        except Missing:
            return

    # -- inside a task ---------------------------------------------------------------------------------------------

    def log(
        self,
        run: RunRef,
        role: str,
        index: int,
        *,
        attempt: int,
        offset: int = 0,
        limit: int = 262_144,
        tail: int | None = None,
    ) -> LogChunk:
        pod = self._pod(run, role, index, attempt)
        if pod is None:
            return LogChunk(b"", offset, True)
        return inside.read_log(self._client, pod, offset=offset, limit=limit, tail=tail)

    def exec(self, run: RunRef, role: str, index: int, argv: Sequence[str]) -> tuple[int, bytes]:
        pod = self._pod(run, role, index, None)
        if pod is None or pod["status"].get("phase") != "Running":
            raise CloudError(f"{role}-{index} does not run.")
        return inside.execute(self._client, pod, argv)

    def _pod(self, run: RunRef, role: str, index: int, attempt: int | None) -> Mapping[str, Any] | None:
        """The pod of one attempt, or the newest one; None when there is none any more."""
        label = names.selector(portal=self._settings.portal, run_id=run.id, role=role)
        path = path_of("Pod", run.namespace)
        pods = [pod for page in self._client.pages(path, labelSelector=label) for pod in page["items"]]
        mine = sorted(
            (pod for pod in pods if states.index_of(pod) == index),
            key=lambda pod: (states.attempt_of(pod), pod["metadata"]["creationTimestamp"]),
        )
        if attempt is not None:
            mine = [pod for pod in mine if states.attempt_of(pod) == attempt]
        return mine[-1] if mine else None
