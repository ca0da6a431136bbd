"""GPUs of a Kubernetes cluster and the pods that hold or await them, updated pod by pod. No network calls."""

from __future__ import annotations

import datetime as dt
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from clusters.clouds.drivers.base import Capacity, Node
from clusters.clouds.drivers.kubernetes.settings import GPU, GPU_MODEL, quantity, toleration

CLOSED = "It takes no new tasks."
LOST = "It does not answer."
GIVEN_UP = "It does not answer and was given up: its tasks start elsewhere."
# A taint by which an administrator declares a node permanently off: Kubernetes deletes its pods at once and recreates them
# elsewhere.
OUT_OF_SERVICE = "node.kubernetes.io/out-of-service"
# The resource of a node's disk: a pod that reserves any cannot run on a node that offers none.
DISK = "ephemeral-storage"
DISK_ADVICE = (
    "An administrator gives nodes disk for pods, or sets “Reserved disk of a task” of this Kubernetes cluster to 0."
)


Amounts = tuple[float, float, float]
NOTHING: Amounts = (0.0, 0.0, 0.0)


@dataclass(frozen=True)
class Held:
    """What one live pod holds on `node`; nothing yet if that is "". `asked`: GPUs, cores and bytes of memory as the scheduler
    counts them. `run_id`: None for other software."""

    run_id: int | None
    node: str
    asked: Amounts


class Shares:
    """Tracks what pods hold on each node (ours and those of other software)."""

    def __init__(self) -> None:
        self.nodes: dict[str, Node] = {}
        self._held: dict[str, Held] = {}
        # What all pods hold by node, and what those of other software do.
        self._taken: defaultdict[str, Amounts] = defaultdict(lambda: NOTHING)
        self._others: defaultdict[str, Amounts] = defaultdict(lambda: NOTHING)

    def note(self, uid: str, now: Held | None) -> None:
        """Updates a pod; None if it holds nothing any more."""
        before = self._held.get(uid)
        if before == now:
            return
        if before is not None:
            del self._held[uid]
            if before.node:
                self._take(before, -1)
        if now is not None:
            self._held[uid] = now
            if now.node:
                self._take(now, 1)

    def note_other(self, uid: str, now: Held | None) -> None:
        """Updates a pod of other software. A pod of ours that lost its labels still counts as ours."""
        before = self._held.get(uid)
        if before is None or before.run_id is None:
            self.note(uid, now)

    def _take(self, held: Held, sign: int) -> None:
        for sums in (self._taken, self._others) if held.run_id is None else (self._taken,):
            gpus, cores, memory = sums[held.node]
            asked = held.asked
            # Rounded, because sums of fractions would not return to exactly 0.
            sums[held.node] = gpus + sign * asked[0], round(cores + sign * asked[1], 6), memory + sign * asked[2]

    def _left(self, node: Node) -> Node:
        gpus, cores, memory = self._taken.get(node.name, NOTHING)
        others = self._others.get(node.name, NOTHING)
        return replace(
            node,
            gpus_free=max(0, node.gpus_free - int(gpus)),
            cpu_milli_free=max(0, int(node.cpu_milli - 1000 * cores)),
            memory_mb_free=max(0, int(node.memory_mb - memory / 2**20)),
            gpus_others=math.ceil(others[0]),
            cpu_milli_others=math.ceil(round(1000 * others[1], 3)),
            memory_mb_others=math.ceil(others[2] / 2**20),
        )

    def capacity(self) -> Capacity:
        return Capacity(tuple(self._left(node) for _, node in sorted(self.nodes.items())))


def ready_of(node: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns a node's condition Ready; {} if it has never reported."""
    conditions = (node.get("status") or {}).get("conditions") or []
    return next((each for each in conditions if each["type"] == "Ready"), {})


def is_silent(node: Mapping[str, Any]) -> bool:
    """Returns whether a node's kubelet has stopped reporting. One that reports not ready still ends its pods on request."""
    return ready_of(node).get("status") == "Unknown"


def last_report(node: Mapping[str, Any]) -> dt.datetime | None:
    """Returns when its kubelet last wrote its status; healthy ones do every 5 minutes. Its lease is more recent."""
    text = ready_of(node).get("lastHeartbeatTime")
    return dt.datetime.fromisoformat(text) if text else None


def node_of(
    node: Mapping[str, Any],
    reserved_disk: float = 0.0,
    tolerations: Sequence[str] = (),
    heard: dt.datetime | None = None,
) -> Node:
    """Converts a node. `gpus_free` ignores pods; it is 0 for a node that takes no new pods. `reserved_disk`: bytes of a node's
    disk that each task reserves. `tolerations`: taints that tasks tolerate. `heard`: when a silent node was last heard."""
    allocatable = allocatable_of(node)
    gpus = int(allocatable(GPU))
    ready, silent = ready_of(node), is_silent(node)
    closed = bool((node.get("spec") or {}).get("unschedulable"))
    disk = allocatable(DISK)
    refused = taints_of(node, [toleration(each) for each in tolerations])
    kept = f"It takes no tasks: taint {min(refused - {GPU})} keeps them away." if refused - {GPU} else ""
    note = CLOSED if closed else too_little_disk(disk, reserved_disk) if disk < reserved_disk else kept
    name = node["metadata"]["name"]
    if silent:
        note = GIVEN_UP if OUT_OF_SERVICE in refused else LOST
    elif ready.get("status") != "True":
        note = f"It is not ready: {ready.get('message') or 'it has not reported yet'}"
    elif OUT_OF_SERVICE in refused:
        note = (
            f"It takes no tasks, because it was given up. It is back now: kubectl taint node {name} {OUT_OF_SERVICE}-"
        )
    return Node(
        name=name,
        gpu_model=(node["metadata"].get("labels") or {}).get(GPU_MODEL, ""),
        gpus=gpus,
        gpus_free=gpus if not note else 0,
        cpu_milli=round(allocatable("cpu") * 1000),
        memory_mb=int(allocatable("memory") / 2**20),
        note=note,
        takes_tasks=not note,
        gpu_tasks_only=GPU in refused,
        silent_since=(heard.isoformat(timespec="seconds") if heard else "?") if note == LOST else "",
    )


def node_lost(node: str, heard: dt.datetime | None) -> str:
    """Returns the message of a task whose node is silent."""
    since = f" (last heard at {heard.astimezone(dt.UTC):%Y-%m-%d %H:%M:%S} UTC)" if heard else ""
    return f"Node {node} does not answer{since}; the task may still run there. {advice(node)}"


def advice(node: str) -> str:
    return (
        f"If the machine is off and stays off, an administrator gives it up under Clouds, or by “{give_up(node)}”; "
        f"“kubectl delete node {node}” if it never comes back. Kubernetes then starts its tasks elsewhere."
    )


def give_up(node: str) -> str:
    """Returns the command that an administrator types."""
    return f"kubectl taint node {node} {OUT_OF_SERVICE}=nodeshutdown:NoExecute"


def taints_of(node: Mapping[str, Any], tolerations: Iterable[Mapping[str, str]]) -> set[str]:
    """Returns the keys of a node's taints that keep away new pods with only these tolerations."""
    return {
        taint["key"]
        for taint in (node.get("spec") or {}).get("taints") or []
        if taint["effect"] in ("NoSchedule", "NoExecute") and not any(_tolerates(each, taint) for each in tolerations)
    }


def _tolerates(toleration: Mapping[str, str], taint: Mapping[str, str]) -> bool:
    return (
        toleration["key"] == taint["key"]
        and toleration.get("effect", taint["effect"]) == taint["effect"]
        and (toleration["operator"] == "Exists" or toleration["value"] == taint.get("value", ""))
    )


def asked_of(pod: Mapping[str, Any], resource: str) -> float:
    """Returns how much of a resource a pod reserves, as the scheduler counts it: concurrent containers together, init containers
    each by itself, or the request of the pod as a whole."""
    spec = pod["spec"]
    together, before = 0.0, 0.0
    for container in spec.get("initContainers") or []:
        asked = _requested(container, resource)
        if container.get("restartPolicy") == "Always":
            together += asked
        before = max(before, together if container.get("restartPolicy") == "Always" else together + asked)
    parts = max(before, together + sum(_requested(container, resource) for container in spec["containers"]))
    whole = ((spec.get("resources") or {}).get("requests") or {}).get(resource)
    return (parts if whole is None else quantity(whole)) + quantity((spec.get("overhead") or {}).get(resource, "0"))


def _requested(container: Mapping[str, Any], resource: str) -> float:
    """Returns a container's request. It defaults to the limit, as in the API server."""
    resources = container.get("resources") or {}
    return quantity({**(resources.get("limits") or {}), **(resources.get("requests") or {})}.get(resource, "0"))


def asked_by(pod: Mapping[str, Any]) -> tuple[float, float, float]:
    """Returns GPUs, cores and bytes of memory."""
    return asked_of(pod, GPU), asked_of(pod, "cpu"), asked_of(pod, "memory")


def allocatable_of(node: Mapping[str, Any]) -> Callable[[str], float]:
    """Returns a function for the allocatable amount of a resource; 0 if the node does not offer it."""
    offered = (node.get("status") or {}).get("allocatable") or {}
    return lambda resource: quantity(offered.get(resource, "0"))


def too_little_disk(offered: float, asked: float) -> str:
    """Returns why a node takes no tasks, with advice."""
    has = f"offers {gib(offered)} of ephemeral-storage" if offered else "offers no ephemeral-storage"
    return f"It takes no tasks: it {has}, and a task reserves {gib(asked)}. {DISK_ADVICE}"


def gib(size: float) -> str:
    return f"{round(size / 2**30, 2):g} GiB"
