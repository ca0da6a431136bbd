"""What the watching process remembers of its pods, nodes and owners, and what of an event is news. No network in here.

It is rebuilt by every listing, so it may be lost at any time. It serves three things: telling each state once, knowing
the pod behind a uid when its end has been written down, and capacity without asking.
"""

from __future__ import annotations

import datetime as dt
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from clusters.clouds.base import Capacity, Node, RunGone, Seen, StorageSeen, StorageState, TaskSeen, Waiting
from clusters.clouds.kubernetes import names, reasons, states
from clusters.clouds.kubernetes.settings import GPU, GPU_MODEL

Object = Mapping[str, Any]
FOREGROUND = "foregroundDeletion"
_STEPS: tuple[StorageState, ...] = ("failed", "fetching", "storing", "ready", "stored")
_UNITS = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}


@dataclass(frozen=True)
class Pod:
    """`over` when nothing of it runs any more; `held` when it still has our finalizer."""

    namespace: str
    name: str
    seen: TaskSeen
    storage: StorageSeen | None
    created: str
    gpus: int
    gpu_model: str
    over: bool
    held: bool

    @property
    def run_id(self) -> int:
        return self.seen.run_id


@dataclass(frozen=True)
class Owner:
    """`ending`: deleted, and the garbage collector knows that everything of the run goes with it. `ended`: all has gone."""

    run_id: int
    namespace: str
    name: str
    deleted: bool
    ending: bool
    not_stored: str
    held: bool

    @property
    def ended(self) -> bool:
        return self.deleted and not self.ending


class Mirror:
    def __init__(self) -> None:
        self.pods: dict[str, Pod] = {}
        self.runs: defaultdict[int, set[str]] = defaultdict(set)
        self.owners: dict[int, Owner] = {}
        self.nodes: dict[str, Node] = {}
        # Runs whose owner or namespace was deleted by hand, so that nobody ends their tasks.
        self.left_behind: set[int] = set()
        # Pods of services on which their number is to be written, before the pods that were counted can go.
        self.unnumbered: dict[str, TaskSeen] = {}
        self._storage: dict[int, StorageSeen] = {}
        self._numbers: defaultdict[int, dict[tuple[str, int], dict[str, int]]] = defaultdict(dict)

    def note_node(self, kind: str, node: Object) -> None:
        name = node["metadata"]["name"]
        if kind == "DELETED":
            self.nodes.pop(name, None)
        else:
            self.nodes[name] = node_of(node)

    def note_namespace(self, namespace: Object) -> None:
        """In a namespace that is being deleted, Indexed Jobs wait for pods that cannot be made and hold the last ones for
        ever (seen with Kubernetes 1.36): the runs must be ended first."""
        if "deletionTimestamp" in namespace["metadata"]:
            name = namespace["metadata"]["name"]
            self.left_behind |= {run_id for run_id, owner in self.owners.items() if owner.namespace == name}

    def note_pod(self, kind: str, pod: Object, now: dt.datetime) -> list[Seen]:
        """The news in an event about a pod; nothing when it only repeats what was told."""
        uid = pod["metadata"]["uid"]
        gone = kind == "DELETED"
        before = self.pods.get(uid)
        node = self.nodes.get(pod["spec"].get("nodeName") or "")
        wanted = (pod["spec"].get("nodeSelector") or {}).get(GPU_MODEL, "")
        vanished_at = now if gone and not states.is_over(pod) else None
        seen = states.task_seen(pod, gpu_model=node.gpu_model if node else wanted, vanished_at=vanished_at)
        if seen is None:
            return []
        if not states.is_of_job(pod):
            seen = replace(seen, attempt=self._number(seen))
            self._note_number(pod, seen, gone=gone)
        if gone:
            self.pods.pop(uid, None)
            self.runs[seen.run_id].discard(uid)
        else:
            self.runs[seen.run_id].add(uid)
            self.pods[uid] = Pod(
                namespace=pod["metadata"]["namespace"],
                name=pod["metadata"]["name"],
                seen=seen,
                storage=states.storage_seen(pod),
                created=pod["metadata"]["creationTimestamp"],
                gpus=reasons.gpus_of(pod),
                gpu_model=wanted,
                over=states.is_over(pod),
                held=names.METERING in (pod["metadata"].get("finalizers") or []),
            )
        news: list[Seen] = [] if before and before.seen == seen else [seen]
        return [*news, *self._note_storage(seen.run_id), *(self._gone(seen.run_id) if gone else [])]

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

    def note_owner(self, kind: str, owner: Object) -> list[Seen]:
        metadata = owner["metadata"]
        run_id = names.run_id_of(metadata.get("labels") or {})
        if run_id is None:
            return []
        finalizers = metadata.get("finalizers") or []
        if kind == "DELETED":
            self.owners.pop(run_id, None)
            self._storage.pop(run_id, None)
            self._numbers.pop(run_id, None)
            # With our finalizer taken off it has been told before.
            return [] if self.runs[run_id] else [RunGone(run_id, *_stored(metadata))]
        before = self.owners.get(run_id)
        owner_now = self.owners[run_id] = Owner(
            run_id=run_id,
            namespace=metadata["namespace"],
            name=metadata["name"],
            deleted="deletionTimestamp" in metadata,
            ending=FOREGROUND in finalizers,
            not_stored=_stored(metadata)[1],
            held=names.TOLD in finalizers,
        )
        # So that a listing names every run, also one that has no pods yet.
        if owner_now.ended and self.runs[run_id] and not (before and before.ending):
            self.left_behind.add(run_id)
        news: list[Seen] = [] if before else [self._storage.get(run_id, StorageSeen(run_id, "none"))]
        return [*news, *self._gone(run_id)]

    def _gone(self, run_id: int) -> list[Seen]:
        owner = self.owners.get(run_id)
        if owner is None or not owner.ended or self.runs[run_id]:
            return []
        return [RunGone(run_id, not owner.not_stored, owner.not_stored)]

    def _note_storage(self, run_id: int) -> list[Seen]:
        """How far the data of a run is: as far as its last task, but for a failure."""
        found = [each for uid in self.runs[run_id] if (each := self.pods[uid].storage)]
        if not found:
            return []
        state = min(found, key=lambda each: _STEPS.index(each.state))
        if self._storage.get(run_id) == state:
            return []
        self._storage[run_id] = state
        return [state]

    def take_left_behind(self) -> list[int]:
        found = [run_id for run_id in self.left_behind if run_id in self.owners]
        self.left_behind.clear()
        return found

    def capacity(self) -> Capacity:
        """GPUs that are neither on a node's list of ours nor held by others are free; others' pods are not seen."""
        taken: defaultdict[str, int] = defaultdict(int)
        waiting: dict[int, Waiting] = {}
        for pod in sorted(self.pods.values(), key=lambda pod: (pod.created, pod.seen.run_id)):
            if pod.over or not pod.gpus:
                continue
            if pod.seen.node:
                taken[pod.seen.node] += pod.gpus
            else:
                before = waiting.get(pod.seen.run_id, Waiting(pod.seen.run_id, 0, pod.gpu_model))
                waiting[pod.seen.run_id] = Waiting(before.run_id, before.gpus + pod.gpus, before.gpu_model)
        nodes = (
            Node(**{**vars(node), "gpus_free": max(0, node.gpus_free - taken[name])})
            for name, node in sorted(self.nodes.items())
        )
        return Capacity(tuple(nodes), tuple(waiting.values()))


def _stored(metadata: Object) -> tuple[bool, str]:
    message = (metadata.get("annotations") or {}).get(names.NOT_STORED, "")
    return not message, message


def node_of(node: Object) -> Node:
    """`gpus_free` counts no pods yet; a node that takes no new pods has none free."""
    allocatable = node["status"].get("allocatable") or {}
    gpus = int(allocatable.get(GPU, 0))
    ready = any(each["type"] == "Ready" and each["status"] == "True" for each in node["status"].get("conditions") or [])
    closed = bool(node["spec"].get("unschedulable"))
    note = "" if ready and not closed else "It takes no new tasks." if ready else "It does not answer."
    return Node(
        name=node["metadata"]["name"],
        gpu_model=(node["metadata"].get("labels") or {}).get(GPU_MODEL, ""),
        gpus=gpus,
        gpus_free=gpus if not note else 0,
        cpu_milli=round(quantity(allocatable.get("cpu", "0")) * 1000),
        memory_mb=int(quantity(allocatable.get("memory", "0")) / 2**20),
        note=note,
    )


def quantity(text: str) -> float:
    """A Kubernetes quantity ("500m", "96", "768Gi") as a number."""
    for unit, factor in _UNITS.items():
        if text.endswith(unit):
            return float(text.removesuffix(unit)) * factor
    return float(text.removesuffix("m")) / 1000 if text.endswith("m") else float(text)
