"""GPUs and other devices of a Kubernetes cluster and the pods that hold or await them, updated pod by pod. No network calls.

A node keeps all of its labels, since this cannot know which ones flavors name. Nodes of a pool share theirs but for a few, so
each label is kept once."""

from __future__ import annotations

import datetime as dt
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from clusters.admission.demand import PARTS, WHOLE, counted
from clusters.clouds.drivers.base import Capacity, Node, Slices
from clusters.clouds.drivers.kubernetes.settings import AMD_MODEL, GPU, GPU_MODEL, quantity, toleration

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


# Resources that are no devices. Whatever else a node offers may be asked for.
ORDINARY = frozenset({"cpu", "memory", "pods", DISK})
# Kubernetes' own taints come and go with the state of a node; nobody keeps a node for others by them.
SYSTEM_TAINTS = ("node.kubernetes.io/", "node.cloudprovider.kubernetes.io/")

# GPUs (of NVIDIA's), cores and bytes of memory.
Amounts = tuple[float, float, float]
# Other extended resources by name, in order.
Devices = tuple[tuple[str, float], ...]
NOTHING: Amounts = (0.0, 0.0, 0.0)


@dataclass(frozen=True)
class Held:
    """What one live pod holds on `node`; nothing yet if that is "". `asked`: GPUs, cores and bytes of memory as the scheduler
    counts them. `run_id`: None for other software."""

    run_id: int | None
    node: str
    asked: Amounts
    devices: Devices = ()


class Shares:
    """Tracks what pods hold on each node (ours and those of other software)."""

    def __init__(self) -> None:
        self.nodes: dict[str, Node] = {}
        self._held: dict[str, Held] = {}
        # What all pods hold by node, and what those of other software do.
        self._taken: defaultdict[str, Amounts] = defaultdict(lambda: NOTHING)
        self._others: defaultdict[str, Amounts] = defaultdict(lambda: NOTHING)
        # Devices that all pods hold by node, and those of other software.
        self._devices: defaultdict[str, Counter[str]] = defaultdict(Counter)
        self._others_devices: defaultdict[str, Counter[str]] = defaultdict(Counter)

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
        for name, count in held.devices:
            self._devices[held.node][name] += sign * int(count)
            if held.run_id is None:
                self._others_devices[held.node][name] += sign * int(count)

    def _left(self, node: Node) -> Node:
        gpus, cores, memory = self._taken.get(node.name, NOTHING)
        others = self._others.get(node.name, NOTHING)
        if node.slices or node.resource != GPU:
            node, gpus, others = self._left_of_devices(node, gpus, others)
        return replace(
            node,
            gpus_free=max(0, node.gpus_free - int(gpus)),
            cpu_milli_free=max(0, int(node.cpu_milli - 1000 * cores)),
            memory_mb_free=max(0, int(node.memory_mb - memory / 2**20)),
            gpus_others=math.ceil(others[0]),
            cpu_milli_others=math.ceil(round(1000 * others[1], 3)),
            memory_mb_others=math.ceil(others[2] / 2**20),
        )

    def _left_of_devices(self, node: Node, gpus: float, others: Amounts) -> tuple[Node, float, Amounts]:
        """Returns the node with what is left of its slices, and how many of its GPUs are taken. Slices may be called as GPUs."""
        taken, foreign = self._devices.get(node.name, Counter()), self._others_devices.get(node.name, Counter())
        taken, foreign = taken | Counter({PARTS: int(gpus)}), foreign | Counter({PARTS: math.ceil(others[0])})
        slices = tuple(
            replace(each, free=max(0, each.total - taken[each.resource]), others=foreign[each.resource])
            for each in node.slices
        )
        if node.resource != GPU:
            gpus, others = taken[node.resource], (foreign[node.resource], *others[1:])
        elif any(each.resource == PARTS for each in slices):
            gpus, others = 0, (0.0, *others[1:])
        return replace(node, slices=slices), gpus, others

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
    topology: Sequence[str] = (),
) -> Node:
    """Converts a node. `gpus_free` ignores pods; it is 0 for a node that takes no new pods. `reserved_disk`: bytes of a node's
    disk that each task reserves. `tolerations`: taints that tasks tolerate. `heard`: when a silent node was last heard.
    `topology`: labels that say where it is, from wide to narrow."""
    allocatable = allocatable_of(node)
    marks = node["metadata"].get("labels") or {}
    resource, gpus, slices = devices_of(node)
    ready, silent = ready_of(node), is_silent(node)
    closed = bool((node.get("spec") or {}).get("unschedulable"))
    disk = allocatable(DISK)
    keeping = keeping_of(node, [toleration(each) for each in tolerations])
    refused = {taint["key"] for taint in keeping}
    of_system = sorted(key for key in refused if key.startswith(SYSTEM_TAINTS))
    kept = f"It takes no tasks: taint {of_system[0]} keeps them away." if of_system else ""
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
        gpu_model=marks.get(GPU_MODEL if resource == GPU else AMD_MODEL, ""),
        gpus=gpus,
        gpus_free=gpus if not note else 0,
        cpu_milli=round(allocatable("cpu") * 1000),
        memory_mb=int(allocatable("memory") / 2**20),
        note=note,
        takes_tasks=not note,
        gpu_tasks_only=GPU in refused,
        silent_since=(heard.isoformat(timespec="seconds") if heard else "?") if note == LOST else "",
        resource=resource,
        labels=tuple(_kept_once(label) for label in sorted(marks.items())),
        taints=tuple(
            sorted(f"{each['key']}={each.get('value', '')}:{each['effect']}" for each in keeping if each["key"] != GPU)
        ),
        slices=slices,
        domains=tuple(_kept_once((_short(name), marks.get(name, ""))) for name in topology)
        if any(name in marks for name in topology)
        else (),
    )


def _short(label: str) -> str:
    """What people call it: a rack, and not example.com/rack."""
    return label.rpartition("/")[2]


@lru_cache(100_000)
def _kept_once(label: tuple[str, str]) -> tuple[str, str]:
    return label


def devices_of(node: Mapping[str, Any]) -> tuple[str, int, tuple[Slices, ...]]:
    """Returns what the node's GPUs are, how many whole ones it offers, and all else that is neither CPU, memory nor disk."""
    offered = (node.get("status") or {}).get("allocatable") or {}
    marks = node["metadata"].get("labels") or {}
    found = {
        counted(name, marks.get(GPU_MODEL, ""), marks): int(quantity(text))
        for name, text in offered.items()
        if name not in ORDINARY and not name.startswith("attachable-volumes-")
    }
    found = {name: count for name, count in found.items() if count}
    resource = next((name for name in (GPU, *sorted(WHOLE)) if name in found), GPU)
    gpus = found.pop(resource, 0)
    return resource, gpus, tuple(Slices(name, count, count) for name, count in sorted(found.items()))


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


def keeping_of(node: Mapping[str, Any], tolerations: Iterable[Mapping[str, str]]) -> list[Mapping[str, str]]:
    """Returns the node's taints that keep away new pods with only these tolerations."""
    return [
        taint
        for taint in (node.get("spec") or {}).get("taints") or []
        if taint["effect"] in ("NoSchedule", "NoExecute") and not any(_tolerates(each, taint) for each in tolerations)
    ]


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


def devices_by(pod: Mapping[str, Any]) -> Devices:
    """Returns what a pod reserves of other devices."""
    spec = pod["spec"]
    resources = [each.get("resources") or {} for each in [*spec["containers"], *(spec.get("initContainers") or [])]]
    resources.append(spec.get("resources") or {})
    names = {name for each in resources for kind in ("limits", "requests") for name in each.get(kind) or ()}
    others = names - ORDINARY - {GPU}
    return tuple((name, asked_of(pod, name)) for name in sorted(others)) if others else ()


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
