"""Why a run may start now, waits, or never can. Pure.

Two limits stand between a run and its GPUs: the quota of its appcode, kept by the portal, and the machines that exist, kept by
the cloud, with their GPUs, CPUs and memory. Both are judged here in sentences that a person can act on: the quota before submit
(preview) and in the queue, the machines before submit only, because afterwards the cloud itself says what a run waits for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from clusters.clouds.drivers.base import Capacity, Node

Fits = Literal["now", "waits", "never"]


@dataclass(frozen=True)
class Judgement:
    fits: Fits
    reason: str
    message: str


@dataclass(frozen=True)
class Quota:
    """`held` are the GPUs of admitted runs; `queue` the GPUs of each run that waits before this one, oldest first."""

    appcode: str
    limit: int
    held: int
    queue: Sequence[int] = ()


def judge_quota(gpus: int, quota: Quota) -> Judgement:
    """First come, first served: a run waits behind older ones of its appcode even when it alone would fit."""
    if gpus == 0:
        return Judgement("now", "", "")
    if gpus > quota.limit:
        return Judgement(
            "never",
            "QuotaExceeded",
            f"It needs {_gpus(gpus)}, and the quota of {quota.appcode} is {quota.limit}. Ask for fewer, or let an "
            "owner request a larger quota.",
        )
    free = quota.limit - quota.held
    if quota.queue or gpus > free:
        place = f" It is number {len(quota.queue) + 1} in the queue." if quota.queue else ""
        return Judgement(
            "waits",
            "QuotaExceeded",
            f"It waits for quota: it needs {_gpus(gpus)}, and {quota.held} of the {quota.limit} of {quota.appcode} are held."
            + place,
        )
    return Judgement("now", "", "")


@dataclass(frozen=True)
class _Kind:
    """CPU or memory: its name in `Node`, how many of its units are one for people, and what that one is called."""

    field: Literal["cpu_milli", "memory_mb"]
    one: int
    name: str

    def amount(self, units: int) -> str:
        return f"{units / self.one:.10g} {self.name}"

    def of(self, node: Node) -> int:
        return int(getattr(node, self.field))

    def free(self, node: Node) -> int | None:
        return node.cpu_milli_free if self.field == "cpu_milli" else node.memory_mb_free


_CPU, _MEMORY = _Kind("cpu_milli", 1000, "CPUs"), _Kind("memory_mb", 1024, "GiB of memory")


def judge_room(per_task: Mapping[str, tuple[int, int, int]], capacity: Capacity) -> Judgement:
    """Whether there is CPU and memory enough, and free where the cloud says how much is.

    `per_task`: role → (number of tasks, thousandths of a core and MiB of each). Nothing is said of machines of an unknown size.
    """
    waits = []
    for place, kind in enumerate((_CPU, _MEMORY), 1):
        sizes = [kind.of(node) for node in capacity.nodes]
        if not sizes or not all(sizes):
            continue
        total = sum(each[0] * each[place] for each in per_task.values())
        for role, each in per_task.items():
            if each[0] and each[place] > max(sizes):
                text = f"No machine has {kind.amount(each[place])} for one {role}. Choose a smaller flavor."
                return Judgement("never", "Unschedulable", text)
        if total > sum(sizes):
            text = f"It needs {kind.amount(total)} at one time; all machines together have {kind.amount(sum(sizes))} for tasks."
            return Judgement("never", "Unschedulable", text + " Choose fewer tasks or a smaller flavor.")
        free = [kind.free(node) for node in capacity.nodes]
        known = sum(each for each in free if each is not None)
        if None not in free and total > known:
            waits.append(f"{kind.amount(total)}, and {kind.amount(known)} are free")
    if waits:
        text = f"It needs {'; and '.join(waits)}. It starts as soon as enough are."
        return Judgement("waits", "WaitingForResources", text)
    return Judgement("now", "", "")


def judge_capacity(per_task: Mapping[str, tuple[int, int]], models: Mapping[str, str], capacity: Capacity) -> Judgement:
    """Whether the GPUs exist and are free.

    `per_task`: role → (number of tasks, GPUs of each); `models`: role → GPU model, "" for any.
    """
    if capacity.nodes and not any(node.takes_tasks for node in capacity.nodes):
        return Judgement("waits", "Unschedulable", f"No machine takes tasks now: {_notes(capacity.nodes)}")
    if not any(count * gpus for count, gpus in per_task.values()):
        return Judgement("now", "", "It needs no GPU and can start now.")
    if not capacity.nodes:
        return Judgement("waits", "NoNodes", "No machine has reported in yet; it starts when one does.")
    total = sum(count * gpus for count, gpus in per_task.values())
    for role, (count, gpus) in per_task.items():
        nodes = [node for node in capacity.nodes if _matches(node, models.get(role, ""))]
        kind = models.get(role) or "GPU"
        if gpus and max((node.gpus for node in nodes), default=0) < gpus:
            return Judgement(
                "never", "Unschedulable", f"No machine has {gpus} {kind}s for one {role}. Choose a smaller flavor."
            )
        if sum(node.gpus // gpus for node in nodes if gpus) < count and gpus:
            have = sum(node.gpus for node in nodes)
            return Judgement(
                "never",
                "Unschedulable",
                f"{count} × {role} with {_gpus(gpus)} each need {count * gpus}; all machines together have {have}.",
            )
    have, free = sum(node.gpus for node in capacity.nodes), sum(node.gpus_free for node in capacity.nodes)
    if total > have:
        return Judgement(
            "never", "Unschedulable", f"It needs {_gpus(total)} at one time; all machines together have {have}."
        )
    if capacity.queue:
        place = len(capacity.queue) + 1
        return Judgement(
            "waits",
            "WaitingForGPUs",
            f"It needs {_gpus(total)}; {free} of {have} are free. It would be number {place} in the queue.",
        )
    if total > free:
        return Judgement(
            "waits",
            "WaitingForGPUs",
            f"It needs {_gpus(total)}; {free} of {have} are free. It starts as soon as enough are.{_closed(capacity)}",
        )
    return Judgement("now", "", f"It fits now: it needs {_gpus(total)}, and {free} of {have} are free.")


def worst(*judgements: Judgement) -> Judgement:
    """The judgement that decides: never before waits before now; of equal ones the first."""
    order: dict[Fits, int] = {"never": 0, "waits": 1, "now": 2}
    return min(judgements, key=lambda judgement: order[judgement.fits])


def _closed(capacity: Capacity) -> str:
    """What keeps GPUs from being free that nobody holds."""
    closed = [node for node in capacity.nodes if node.gpus and not node.takes_tasks]
    return f" {len(closed)} of {len(capacity.nodes)} machines take no tasks: {_notes(closed)}" if closed else ""


def _notes(nodes: Sequence[Node]) -> str:
    return " ".join(sorted({node.note for node in nodes if node.note and not node.takes_tasks}))


def _matches(node: Node, model: str) -> bool:
    return not model or node.simulated or node.gpu_model == model


def _gpus(count: int) -> str:
    return f"{count} GPU" if count == 1 else f"{count} GPUs"
