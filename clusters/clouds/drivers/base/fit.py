"""Decides whether tasks fit on machines now, later or never, with a sentence. Pure.

Tasks are placed on machines, never added up: eight free GPUs of one model are none of another, and four and four on two machines
are no place for a task of eight. The result is exact for tasks of one kind. For several kinds a place that is found exists, and
one is rarely missed (never if all tasks have 1, 2, 4 or 8 GPUs, as most flavors do).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from clusters.admission.codes import Code
from clusters.admission.judgement import Judgement
from clusters.admission.packing import Tasks
from clusters.clouds.drivers.base.observations import Capacity, Node

# Role and machine → number of tasks.
Laid = Mapping[tuple[str, str], int]


@dataclass(frozen=True)
class Room:
    """Resources of one machine; infinite where the cloud does not report them."""

    node: str
    gpu_model: str
    gpus: float
    cpu_milli: float
    memory_mb: float
    simulated: bool = False
    gpu_tasks_only: bool = False

    def suits(self, tasks: Tasks) -> bool:
        model = not tasks.gpu_model or self.simulated or self.gpu_model == tasks.gpu_model
        return (model or not tasks.gpus) and (bool(tasks.gpus) or not self.gpu_tasks_only)

    def holds(self, tasks: Tasks) -> float:
        """Returns how many of the tasks fit."""
        if not self.suits(tasks):
            return 0
        sizes = ((self.gpus, tasks.gpus), (self.cpu_milli, tasks.cpu_milli), (self.memory_mb, tasks.memory_mb))
        return min((have // need if have < math.inf else have for have, need in sizes if need), default=math.inf)

    def without(self, tasks: Tasks, count: int) -> Room:
        return replace(
            self,
            gpus=self.gpus - count * tasks.gpus,
            cpu_milli=self.cpu_milli - count * tasks.cpu_milli,
            memory_mb=self.memory_mb - count * tasks.memory_mb,
        )


def all_rooms(capacity: Capacity) -> list[Room]:
    """Returns all machines as if empty, including those that take no tasks now."""
    return [
        Room(
            node.name, node.gpu_model, node.gpus, node.cpu_milli or math.inf, node.memory_mb or math.inf, node.simulated,
            node.gpu_tasks_only,
        )
        for node in capacity.nodes
    ]  # fmt: skip


def free_rooms(capacity: Capacity) -> list[Room]:
    """Returns the free resources of the machines that take tasks. If runs start in order, GPUs that suit a waiting run are
    reserved for it; CPU and memory are what the cloud reports as free."""
    rooms = []
    for whole, node in zip(all_rooms(capacity), capacity.nodes, strict=True):
        if node.takes_tasks:
            room = replace(
                whole,
                gpus=node.gpus_free,
                cpu_milli=whole.cpu_milli if node.cpu_milli_free is None else node.cpu_milli_free,
                memory_mb=whole.memory_mb if node.memory_mb_free is None else node.memory_mb_free,
            )
            kept = capacity.in_order and any(
                each.gpus and room.suits(Tasks("", 1, each.gpus, each.gpu_model)) for each in capacity.queue
            )
            rooms.append(replace(room, gpus=0) if kept else room)
    return rooms


def lay(tasks: Sequence[Tasks], rooms: Sequence[Room]) -> tuple[Laid, Tasks | None, Sequence[Room]]:
    """Places tasks in rooms. Returns the places, the tasks that found none (or None), and what is left of the rooms."""
    by_size = sorted(tasks, key=lambda each: (-each.gpus, not each.gpu_model, -each.cpu_milli, -each.memory_mb))
    by_model = sorted(by_size, key=lambda each: (not each.gpus, not each.gpu_model))
    found = _lay(by_size, rooms)
    return found if found[1] is None or by_model == by_size else _lay(by_model, rooms)


def _lay(tasks: Sequence[Tasks], rooms: Sequence[Room]) -> tuple[Laid, Tasks | None, Sequence[Room]]:
    """Places tasks in this order, each kind in the fullest room that fits: prefers rooms without GPUs for tasks without, and
    avoids GPU models that others name."""
    left, laid = list(rooms), Counter[tuple[str, str]]()
    named = {each.gpu_model for each in tasks if each.gpu_model}
    for each in tasks:
        short = each.count
        wanted = named if not each.gpu_model else set[str]()
        order = sorted(
            range(len(left)), key=lambda i: (left[i].gpu_model in wanted, left[i].gpus, left[i].cpu_milli, left[i].node)
        )
        for i in order:
            if not short:
                break
            if here := int(min(short, left[i].holds(each))):
                laid[each.role, left[i].node] += here
                left[i] = left[i].without(each, here)
                short -= here
        if short:
            return laid, replace(each, count=short), left
    return laid, None, left


def judge(tasks: Sequence[Tasks], capacity: Capacity) -> Judgement:
    """Returns whether a run of these tasks starts now. The reason is a Code."""
    tasks = [each for each in tasks if each.count]
    gpus = sum(each.count * each.gpus for each in tasks)
    if capacity.nodes and not any(node.takes_tasks for node in capacity.nodes):
        return Judgement("waits", Code.NO_NODES, f"No machine takes tasks now: {notes(capacity.nodes)}")
    if not capacity.nodes:
        if gpus:
            return Judgement("waits", Code.NO_NODES, "No machine has reported in yet; it starts when one does.")
        return Judgement("now", Code.FITS, "It asks for no GPU.")
    whole = all_rooms(capacity)
    if (missing := lay(tasks, whole)[1]) is not None:
        return Judgement("never", *_why_never(tasks, missing, whole))
    rooms = free_rooms(capacity)
    _, missing, left = lay(tasks, rooms)
    if missing is None:
        return Judgement(
            "now",
            Code.FITS,
            f"It needs {_gpus(gpus)}, and {_free(tasks, capacity)}." if gpus else "It asks for no GPU.",
        )
    lacks_gpus = missing.gpus and sum(each.holds(_gpus_alone(missing)) for each in left) < missing.count
    place = (
        f" It would be number {len(capacity.queue) + 1} in the queue." if capacity.queue and capacity.in_order else ""
    )
    reason = Code.RESOURCES
    if lacks_gpus:
        reason = (
            Code.FRAGMENTED if gpus <= sum(room.gpus for room in rooms if any(map(room.suits, tasks))) else Code.GPUS
        )
    sentence = (
        _why_no_gpus(tasks, missing, left, capacity) if lacks_gpus else _why_no_room(tasks, missing, left, capacity)
    )
    return Judgement("waits", reason, f"{sentence}{place}{closed(capacity)}")


def _why_never(tasks: Sequence[Tasks], missing: Tasks, rooms: Sequence[Room]) -> tuple[Code, str]:
    smaller = "Choose a smaller flavor."
    suiting = [room for room in rooms if room.suits(missing)]
    most = max((room.gpus for room in suiting), default=0)
    if missing.gpus > most:
        code = Code.OVER_NODE if most else Code.NO_SUCH_GPU
        return code, f"No machine has {missing.gpus} {missing.gpu_model or 'GPU'}s for one {missing.role}. {smaller}"
    for need, of, amount in _SIZES:
        if need(missing) > max((of(room) for room in suiting), default=0):
            return Code.OVER_NODE, f"No machine has {amount(need(missing))} for one {missing.role}. {smaller}"
    for need, of, amount in (_GPUS, *_SIZES):
        total, have = sum(each.count * need(each) for each in tasks), sum(of(room) for room in rooms)
        if total > have:
            return Code.OVER_POOL, (
                f"It needs {amount(total)} at one time; all machines together have {amount(have)} for tasks. "
                "Choose fewer tasks or a smaller flavor."
            )
    return Code.OVER_POOL, (
        f"{missing.count} of its tasks ({missing.role}, {_what(missing)} each) find no place beside the others, "
        "even when all machines are empty. Choose fewer tasks or a smaller flavor."
    )


def _why_no_gpus(tasks: Sequence[Tasks], missing: Tasks, left: Sequence[Room], capacity: Capacity) -> str:
    """Names the largest free block if none of these tasks fits, else how many fit."""
    of_all = sum(each.count * each.gpus for each in tasks)
    kind = f"{missing.gpu_model} GPU" if missing.gpu_model else "GPU"
    count = next(each.count for each in tasks if each.role == missing.role)
    if len(capacity.nodes) > 1 and missing.gpus > 1 and missing.count == count:
        block = max((room for room in left if room.suits(missing)), key=lambda room: room.gpus, default=None)
        rest = " that its other tasks leave" if len(tasks) > 1 else ""
        free = (
            f"the largest free block{rest} is {block.gpus:g} on {block.node}"
            if block and block.gpus
            else "no node has any free"
        )
        return f"It needs {missing.gpus} {kind}s on one node; {free}."
    if len(capacity.nodes) > 1 and missing.gpus > 1:
        return f"It needs {count} × {missing.gpus} {kind}s, each on one node; {count - missing.count} of these find room now."
    return f"It needs {_gpus(of_all)}; {_free(tasks, capacity)}. It starts as soon as enough are."


def _why_no_room(tasks: Sequence[Tasks], missing: Tasks, left: Sequence[Room], capacity: Capacity) -> str:
    single = len([node for node in capacity.nodes if node.takes_tasks]) == 1
    rooms = free_rooms(capacity) if single else [room for room in left if room.holds(_gpus_alone(missing)) >= 1]
    parts = []
    for need, of, amount in _SIZES:
        if single:
            total, most = sum(each.count * need(each) for each in tasks), sum(of(room) for room in rooms)
            if total > most:
                parts.append(f"{amount(total)}, and {amount(most)} are free")
        elif need(missing) > (most := max((of(room) for room in rooms), default=0)):
            parts.append(
                f"{amount(need(missing))} on one node for one {missing.role}, and at most {amount(most)} are free"
            )
    if not parts:
        count = next(each.count for each in tasks if each.role == missing.role)
        parts = [
            f"room for {count} × {missing.role} ({_what(missing)} each), and there is room for {count - missing.count} now"
        ]
    return f"It needs {'; and '.join(parts)}. It starts as soon as enough are."


_Amount = Callable[[float], str]
_Size = tuple[Callable[[Tasks], int], Callable[[Room], float], _Amount]


def _gpus(count: float) -> str:
    return f"{count:g} GPU" if count == 1 else f"{count:g} GPUs"


_GPUS: _Size = (lambda each: each.gpus, lambda room: room.gpus, _gpus)
_SIZES: tuple[_Size, ...] = (
    (lambda each: each.cpu_milli, lambda room: room.cpu_milli, lambda units: f"{units / 1000:.10g} CPUs"),
    (lambda each: each.memory_mb, lambda room: room.memory_mb, lambda units: f"{units / 1024:.4g} GiB of memory"),
)


def _gpus_alone(tasks: Tasks) -> Tasks:
    return replace(tasks, cpu_milli=0, memory_mb=0)


def _what(tasks: Tasks) -> str:
    parts = [amount(need(tasks)) for need, _, amount in (_GPUS, *_SIZES) if need(tasks)]
    return ", ".join(parts)


def _free(tasks: Iterable[Tasks], capacity: Capacity) -> str:
    """ "3 of 8 are free", of the GPUs that suit the tasks."""
    models = {each.gpu_model for each in tasks if each.gpus}
    nodes = [
        node for node in capacity.nodes if node.gpus and ("" in models or node.simulated or node.gpu_model in models)
    ]
    free, have = sum(node.gpus_free for node in nodes), sum(node.gpus for node in nodes)
    kind = f" {next(iter(models))}" if len(models) == 1 and "" not in models else ""
    return f"{free} of {have}{kind} are free"


def closed(capacity: Capacity) -> str:
    """Explains GPUs that are unused but not available."""
    shut = [node for node in capacity.nodes if node.gpus and not node.takes_tasks]
    return f" {len(shut)} of {len(capacity.nodes)} machines take no tasks: {notes(shut)}" if shut else ""


def notes(nodes: Sequence[Node]) -> str:
    return " ".join(sorted({node.note for node in nodes if node.note and not node.takes_tasks}))
