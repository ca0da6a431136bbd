"""GPUs of a Kubernetes cluster and who holds or awaits them, kept up to date pod by pod. No network in here."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from clusters.clouds.drivers.base import Capacity, Node, Waiting
from clusters.clouds.drivers.kubernetes.settings import GPU, GPU_MODEL, quantity

CLOSED = "It takes no new tasks."
LOST = "It does not answer."
# The resource that stands for a node's disk: without it no pod that reserves any can be there.
DISK = "ephemeral-storage"
DISK_ADVICE = (
    "An administrator gives nodes disk for pods, or sets “Reserved disk of a task” of this Kubernetes cluster to 0."
)


@dataclass(frozen=True)
class Held:
    """What one living pod with GPUs holds on `node`, or waits for ("")."""

    run_id: int
    node: str
    gpus: int
    gpu_model: str
    created: str


class Shares:
    """Pods of others are not seen: GPUs that they hold count as free, as far as the node's own list says nothing else."""

    def __init__(self) -> None:
        self.nodes: dict[str, Node] = {}
        self._held: dict[str, Held] = {}
        self._taken: Counter[str] = Counter()
        self._waiting: dict[int, dict[str, Held]] = {}

    def note(self, uid: str, now: Held | None) -> None:
        """None for a pod that holds and awaits nothing any more."""
        before = self._held.get(uid)
        if before == now:
            return
        if before is not None:
            del self._held[uid]
            if before.node:
                self._taken[before.node] -= before.gpus
            else:
                del self._waiting[before.run_id][uid]
                if not self._waiting[before.run_id]:
                    del self._waiting[before.run_id]
        if now is not None:
            self._held[uid] = now
            if now.node:
                self._taken[now.node] += now.gpus
            else:
                self._waiting.setdefault(now.run_id, {})[uid] = now

    def capacity(self) -> Capacity:
        """Runs wait in the order in which the first of their waiting pods was made."""
        nodes = (
            replace(node, gpus_free=max(0, node.gpus_free - self._taken[name]))
            for name, node in sorted(self.nodes.items())
        )
        waiting = sorted(
            (min(each.created for each in pods.values()), run_id, pods) for run_id, pods in self._waiting.items()
        )
        queue = (
            Waiting(run_id, sum(each.gpus for each in pods.values()), next(iter(pods.values())).gpu_model)
            for _, run_id, pods in waiting
        )
        return Capacity(tuple(nodes), tuple(queue))


def node_of(node: Mapping[str, Any], reserved_disk: float = 0.0) -> Node:
    """`gpus_free` counts no pods yet; a node that takes no new pods has none free. `reserved_disk` is what each task reserves of
    a node's disk, in bytes."""
    allocatable = allocatable_of(node)
    gpus = int(allocatable(GPU))
    conditions = (node.get("status") or {}).get("conditions") or []
    ready = any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)
    closed = bool((node.get("spec") or {}).get("unschedulable"))
    disk = allocatable(DISK)
    note = CLOSED if closed else too_little_disk(disk, reserved_disk) if disk < reserved_disk else ""
    note = note if ready else LOST
    return Node(
        name=node["metadata"]["name"],
        gpu_model=(node["metadata"].get("labels") or {}).get(GPU_MODEL, ""),
        gpus=gpus,
        gpus_free=gpus if not note else 0,
        cpu_milli=round(allocatable("cpu") * 1000),
        memory_mb=int(allocatable("memory") / 2**20),
        note=note,
        takes_tasks=not note,
    )


def allocatable_of(node: Mapping[str, Any]) -> Callable[[str], float]:
    """How much of a resource pods may have of it; 0 of what it does not offer."""
    offered = (node.get("status") or {}).get("allocatable") or {}
    return lambda resource: quantity(offered.get(resource, "0"))


def too_little_disk(offered: float, asked: float) -> str:
    """Why a node takes no tasks, and who mends it."""
    has = f"offers {gib(offered)} of ephemeral-storage" if offered else "offers no ephemeral-storage"
    return f"It takes no tasks: it {has}, and a task reserves {gib(asked)}. {DISK_ADVICE}"


def gib(size: float) -> str:
    return f"{round(size / 2**30, 2):g} GiB"
