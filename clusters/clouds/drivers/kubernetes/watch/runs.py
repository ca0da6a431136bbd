"""The mirror's records of runs: their owners, pods, data, and leftovers of those that end. No network calls.

A run is gone when its owner has ended and its last pod is gone, in whichever order the two watches report that.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import replace

from clusters.clouds.drivers.base import EndpointSeen, RunFound, RunGone, RunRef, Seen, StorageSeen, StorageState
from clusters.clouds.drivers.base.observations import READ_OTHERS
from clusters.clouds.drivers.kubernetes.watch.objects import Object, Owner, Pod, life_of, not_stored
from clusters.clouds.drivers.kubernetes.watch.owned import ref_of

_STEPS: tuple[StorageState, ...] = ("refused", "failed", "fetching", "storing", "ready", "stored")


class Runs:
    """`pods`: the known pods, by uid."""

    def __init__(self, pods: Mapping[str, Pod]) -> None:
        self._pods = pods
        self.owners: dict[int, Owner] = {}
        # Runs that `upkeep` must end: owner or namespace was deleted by hand, or their tasks have ended as requested.
        self.left_behind: set[int] = set()
        # Namespaces being deleted, until they are gone.
        self._deleted: set[str] = set()
        # Runs whose tasks are ended first, before everything else is deleted.
        self.stopping: set[int] = set()
        self._uids: defaultdict[int, set[str]] = defaultdict(set)
        self._refs: dict[int, RunRef] = {}
        self._storage: dict[int, StorageSeen] = {}
        # Runs with data to copy. For the others, news need not check every pod.
        self._copying: set[int] = set()
        # Runs with endpoints, and their last reported addresses.
        self._serving: dict[int, dict[str, str | None]] = {}
        # Runs whose pods get nodes together, until they have them.
        self._gangs: set[int] = set()
        # Runs that lost their owner while pods were left, with its `life`.
        self._unowned: dict[int, int] = {}

    def wanted(self, run_id: int) -> bool | None:
        """Returns whether the run is to continue; None if it has no owner (yet)."""
        owner = self.owners.get(run_id)
        return owner.wanted if owner else None

    def uids(self, run_id: int) -> frozenset[str]:
        """Returns the run's pods."""
        return frozenset(self._uids.get(run_id, ()))

    # -- pods ------------------------------------------------------------------------------------------------------

    def note_pod(self, uid: str, run_id: int, metadata: Object, storage: StorageSeen | None) -> None:
        if run_id not in self._refs and (ref := ref_of(metadata)):
            self._refs[run_id] = ref
        self._uids[run_id].add(uid)
        if storage:
            self._copying.add(run_id)

    def forget_pod(self, uid: str, run_id: int) -> bool:
        """Returns whether nothing of the run is left."""
        self._uids[run_id].discard(uid)
        return self._forget_rest(run_id)

    def note_stopped(self, run_id: int) -> None:
        """Once all its tasks have ended as requested, schedules deletion of the rest."""
        if run_id in self.stopping and all(self._pods[uid].over for uid in self._uids.get(run_id, ())):
            self.left_behind.add(run_id)

    def storage_news(self, run_id: int) -> list[Seen]:
        """Returns the state of a run's data if it changed: that of its slowest task, or a failure."""
        if run_id not in self._copying:
            return []
        found = [each for uid in self._uids.get(run_id, ()) if (each := self._pods[uid].storage)]
        if not found:
            return []
        state = min(found, key=lambda each: _STEPS.index(each.state))
        # The warning may be of another pod.
        if warning := next((each.warning for each in found if each.warning), ""):
            state = replace(state, warning=warning)
        read = {each.digest: each for each in found if each.digest}
        if read:
            first = read[min(read)]
            state = replace(state, digest=first.digest, files=first.files, bytes=first.bytes)
        if len(read) > 1:
            state = replace(state, warning=state.warning or READ_OTHERS)
        if self._storage.get(run_id) == state:
            return []
        self._storage[run_id] = state
        return [state]

    def note_serving(self, run_id: int) -> None:
        self._serving.setdefault(run_id, {})

    def endpoint_news(self, run_id: int) -> list[Seen]:
        """Returns changed endpoints. One is ready while a task that serves it is ready and the run is not being ended."""
        if run_id not in self._serving:
            return []
        told, goes_on = self._serving[run_id], self.wanted(run_id) is not False
        now: dict[str, str | None] = dict.fromkeys(told)
        for uid in self._uids.get(run_id, ()):
            for name, address in self._pods[uid].serves.items():
                if now.get(name) is None:
                    now[name] = address if goes_on else None
        self._serving[run_id] = now
        return [
            EndpointSeen(run_id, name, address is not None, address or "")
            for name, address in sorted(now.items())
            if name not in told or told[name] != address
        ]

    # -- owners ----------------------------------------------------------------------------------------------------

    def note_owner(self, owner: Owner, ref: RunRef) -> list[Seen]:
        run_id = owner.run_id
        before = self.owners.get(run_id)
        self.owners[run_id], self._refs[run_id] = owner, ref
        self._unowned.pop(run_id, None)
        if owner.gang and owner.wanted:
            self._gangs.add(run_id)
        else:
            self._gangs.discard(run_id)
        if owner.wanted or owner.deleted:
            self.stopping.discard(run_id)
        else:
            self.stopping.add(run_id)
        if owner.ended and self._uids[run_id] and not (before and before.ending):
            self.left_behind.add(run_id)
        self.note_stopped(run_id)
        news: list[Seen] = []
        if before is None:
            # Makes every listing name all runs, even those without pods.
            news = [self._storage.get(run_id, StorageSeen(run_id, "none"))]
            if owner.wanted:
                news.append(RunFound(run_id, ref))
        return [*news, *self.endpoint_news(run_id), *self.gone(run_id)]

    def forget_owner(self, run_id: int) -> bool:
        """Returns whether nothing of the run is left."""
        self.stopping.discard(run_id)
        self._gangs.discard(run_id)
        self.owners.pop(run_id, None)
        self._storage.pop(run_id, None)
        return self._forget_rest(run_id)

    def without_owner(self, run_id: int, metadata: Object) -> list[Seen]:
        """Returns the news when an owner is deleted. Without our finalizer RunGone was reported before."""
        if self._uids.get(run_id):
            self._unowned[run_id] = life_of(metadata)
            return []
        return [self._gone(run_id, metadata["namespace"], not_stored(metadata), life_of(metadata))]

    def leave_behind(self, namespace: str) -> None:
        """Marks all runs of a deleted namespace to be ended."""
        self._deleted.add(namespace)
        self.left_behind |= {run_id for run_id, owner in self.owners.items() if owner.namespace == namespace}

    def note_living(self, namespace: str) -> None:
        """Notes that a namespace exists and is not being deleted."""
        self._deleted.discard(namespace)

    def bound_gangs(self) -> Iterator[tuple[Owner, RunRef]]:
        """Yields runs whose pods have got nodes together: one with a node says so of all."""
        for run_id in self._gangs:
            if any(self._pods[uid].seen.node for uid in self._uids.get(run_id, ())):
                yield self.owners[run_id], self._refs[run_id]

    # -- ends ------------------------------------------------------------------------------------------------------

    def gone(self, run_id: int) -> list[Seen]:
        if self._uids.get(run_id):
            return []
        if run_id in self._unowned:
            life, ref = self._unowned.pop(run_id), self._refs.get(run_id)
            return [self._gone(run_id, ref.namespace if ref else "", "", life)]
        owner = self.owners.get(run_id)
        if owner is None or not owner.ended:
            return []
        return [self._gone(run_id, owner.namespace, owner.not_stored, owner.life)]

    def _gone(self, run_id: int, namespace: str, not_stored: str, life: int) -> RunGone:
        why = f"Somebody deleted namespace {namespace} of its Kubernetes cluster." if namespace in self._deleted else ""
        return RunGone(run_id, not not_stored, " ".join(filter(None, (why, not_stored))), life)

    def strays(self) -> Iterator[RunRef]:
        """Yields runs with pods but without an owner, which nothing else would delete."""
        for run_id, uids in self._uids.items():
            owner = self.owners.get(run_id)
            alone = owner is None or owner.ended
            if alone and run_id in self._refs and any(not self._pods[uid].leaving for uid in uids):
                yield self._refs[run_id]

    def _forget_rest(self, run_id: int) -> bool:
        if run_id in self.owners or self._uids[run_id]:
            return False
        self._copying.discard(run_id)
        self._serving.pop(run_id, None)
        self._uids.pop(run_id, None)
        self._refs.pop(run_id, None)
        return True
